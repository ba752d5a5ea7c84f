"""Faults that a test switches on: a request is lost, or its answer; the process is killed; an
answer to a check is slow.
"""

import os
import signal
from collections.abc import Callable, Iterable
from enum import StrEnum

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.testing.clock import VirtualClock
from app.testing.options import CUT
from txn.open_checks import LeasedCheck
from txn.producer import Answered, Failed, Failure, ProducerClient, Route


class Fault(StrEnum):
    """Fault to inject into a request."""

    DROP_REQUEST = "drop_request"  # lost on its way here: nothing of it is done
    DROP_ANSWER = "drop_answer"  # done, and the answer is lost
    CRASH_BEFORE = "crash_before"  # kill -9 before anything of it is done
    CRASH_AFTER = "crash_after"  # kill -9 once it is done, before it is answered

    @property
    def strikes_before(self) -> bool:
        return self in (Fault.DROP_REQUEST, Fault.CRASH_BEFORE)

    @property
    def kills(self) -> bool:
        return self in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)


class Faults:
    """The faults that are switched on. Event loop only."""

    def __init__(self) -> None:
        # operation id and fault: how many requests it still strikes
        self.armed: dict[tuple[str, Fault], int] = {}
        self.struck = 0
        self.slow_check_ms = 0

    def arm(self, operation_id: str, fault: Fault, times: int) -> None:
        self.armed[operation_id, fault] = times

    def clear(self) -> None:
        self.armed.clear()
        self.slow_check_ms = 0

    def take(self, operation_id: str) -> Fault | None:
        """The fault that strikes this request."""
        for (armed_id, fault), left in self.armed.items():
            if armed_id == operation_id:
                self.struck += 1
                self.armed[armed_id, fault] = left - 1
                if left == 1:
                    del self.armed[armed_id, fault]
                return fault
        return None


class FaultSwitches:
    """ASGI middleware around the routes."""

    def __init__(
        self, app: ASGIApp, *, faults: Faults, routes: Iterable[BaseRoute], kill: Callable[[], None]
    ) -> None:
        self._app = app
        self._faults = faults
        self._routes = list(routes)
        self._kill = kill

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation_id = (
            self._operation_id(scope) if self._faults.armed and scope["type"] == "http" else None
        )
        fault = None if operation_id is None else self._faults.take(operation_id)
        if fault is None:
            await self._app(scope, receive, send)
            return

        async def keep_back(_: Message) -> None:
            """Discard the response."""

        if not fault.strikes_before:
            await self._app(scope, receive, keep_back)
        if fault.kills:
            self._kill()
        scope["extensions"][CUT]()
        while (await receive())["type"] != "http.disconnect":
            pass

    def _operation_id(self, scope: Scope) -> str | None:
        for route in self._routes:
            if route.matches(scope)[0] is Match.FULL:
                return getattr(route, "operation_id", None)
        return None


class SlowAnswers:
    """Sends a check and returns its answer late; decisions made meanwhile stand."""

    def __init__(
        self,
        client: ProducerClient,
        faults: Faults,
        clock: VirtualClock,
        timeout_ms_of: Callable[[str], int],
    ) -> None:
        """`timeout_ms_of`: how long an answer of this group may take."""
        self._client = client
        self._faults = faults
        self._clock = clock
        self._timeout_ms_of = timeout_ms_of

    def route(self, group: str) -> Route | None:
        return self._client.route(group)

    async def ask(self, group: str, check: LeasedCheck) -> Answered | Failed:
        slow_ms = self._faults.slow_check_ms
        outcome = await self._client.ask(group, check)
        if not slow_ms:
            return outcome
        timeout_ms = self._timeout_ms_of(group)
        await self._clock.sleep(min(slow_ms, timeout_ms))
        if slow_ms < timeout_ms:
            return outcome._replace(latency_ms=outcome.latency_ms + slow_ms)
        detail = f"no answer within {timeout_ms} ms"
        return Failed(
            Failure.UNREACHABLE, detail, latency_ms=timeout_ms, is_timeout=True, blames_host=True
        )

    async def disable(self, group: str, host: str) -> None:
        await self._client.disable(group, host)


def kill_this_process() -> None:
    """Kill this process without any clean-up, as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)
