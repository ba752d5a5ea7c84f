"""Answers checks by poll: for producers that no webhook can reach, and for programs that run jobs.

    markers = SqlAlchemyMarkers(engine)
    Checker(client, group="shop", answer=markers.outcome).run()

It runs in any process that reaches the database of the producers, alive or dead; several may run.
"""

import asyncio
import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import cast

from escrowmq_client.async_client import AsyncClient
from escrowmq_client.check_answers import Answer, AsyncAnswer, Decided, answer_of, unknown
from escrowmq_client.client import Client
from escrowmq_client.errors import ClientClosed, EscrowMQError, NotFound, Refused, Unreachable
from escrowmq_client.markers.base import OutcomeUnknown
from escrowmq_client.models.checks import AnswerInput, AnswersResult, Check, CheckAnswer
from escrowmq_client.worker.calling import awaited, called
from escrowmq_client.worker.outage import Outage
from escrowmq_client.worker.poller import AsyncPoller, Poller
from escrowmq_client.worker.signals import stop_at_signals

_log = logging.getLogger(__name__)
_MOST_CHECKS = 20  # at a time: each is answered before its lease ends
_PAUSE_MS = 1_000  # after an error of the service, which the client has repeated already


class _BaseChecker:
    """Group, counts and log lines of a checker."""

    def __init__(self, group: str, wait_ms: int) -> None:
        self.group = group
        self.counts: Counter[str] = Counter()
        """Answers that were sent: commit, rollback, unknown and refused."""
        self._wait_ms = wait_ms
        self._is_known = False  # the group exists
        self._has_warned = False

    def _warn_of_unknown_group(self) -> None:
        """Warn, once: the group may be new, or its name wrong."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "producer group %s does not exist, and has no checks: either no producer has begun "
                "a transaction in it yet, or producers use another name; compare it with theirs",
                self.group,
            )

    def _outage(self) -> Outage:
        return Outage(self.group, "requests for checks of producer group", _log)

    def _count(self, sent: Sequence[tuple[Check, CheckAnswer]], answer: AnswersResult) -> None:
        """A refused answer is not an error here: the producer, or an operator, was first."""
        for (check, given), result in zip(sent, answer.results, strict=True):
            if result.problem is None:
                self.counts[given.decision] += 1
                continue
            self.counts["refused"] += 1
            _log.warning(
                "%s: the answer %s was refused: %s",
                check.transaction_id,
                given.decision,
                result.problem.detail,
            )

    def _unknown(self, check: Check, error: Exception) -> CheckAnswer:
        """Make the answer for a function that raised, and log why."""
        if isinstance(error, OutcomeUnknown):
            _log.warning("%s: answered unknown: %s", check.transaction_id, error.reason)
        else:
            _log.warning("%s: answered unknown", check.transaction_id, exc_info=error)
        return unknown(error)


def _left_s(until_ms: float) -> float:
    """Return how long to pause until then; 0 where the service has waited for so long."""
    return max(0, until_ms - _now_ms()) / 1_000


def _now_ms() -> float:
    return time.monotonic() * 1_000


def _inputs(sent: Sequence[tuple[Check, CheckAnswer]]) -> list[AnswerInput]:
    return [
        AnswerInput(
            check_id=check.check_id,
            decision=given.decision,
            evidence=given.evidence,
            recheck_after_ms=given.recheck_after_ms,
        )
        for check, given in sent
    ]


class _Answering(Client):
    """Calls of a client that are not repeated any more after a stop."""

    def __init__(self, client: Client, is_stopping: threading.Event) -> None:
        self._connection = client._connection
        self._retry = client._retry
        self._hooks = client._hooks
        self._pool = client._pool
        self._is_own = False
        self._is_stopping = is_stopping

    def _pause(self, wait_ms: float) -> None:
        if self._is_stopping.wait(wait_ms / 1_000):
            raise Unreachable("the checker was stopped", outcome_unknown=True)


class Checker(_BaseChecker):
    """Answers the checks of a producer group, one after another.

    `answer` gets a check and returns `commit`, `rollback`, `unknown` or a `CheckAnswer`; if it
    raises, the answer is `unknown` with the reason as evidence. `wait_ms`: the longest time that
    `run_once` waits for a check.

    SIGTERM and SIGINT, or `stop()`, end `run`: a wait for checks or for a service that is away ends
    at once, and checks that were received are answered. A second signal has the effect that it had
    before `run`.

    A group exists from the first transaction of its producers. Until then there are no checks,
    which is logged once as a warning: the name may be wrong.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        answer: Answer,
        *,
        wait_ms: int = 5_000,
        handle_signals: bool = True,
    ) -> None:
        super().__init__(group, wait_ms)
        self._client = client
        self._answer = answer
        self._handle_signals = handle_signals
        self._is_stopping = threading.Event()
        self._poller: Poller | None = None

    def run(self) -> None:
        """Answer checks until `stop` is called, in this thread."""
        self._poller = poller = Poller(self._client, self._outage())
        answering = _Answering(self._client, self._is_stopping)
        wait_ms = poller.longest_wait_ms(self._wait_ms)
        signals = stop_at_signals(self.stop, once=True)
        with signals if self._handle_signals else nullcontext(), poller:
            while not self._is_stopping.is_set():
                again_ms = _now_ms() + min(_PAUSE_MS, wait_ms)
                try:
                    if not self._answer_checks(poller, answering, wait_ms):
                        self._is_stopping.wait(_left_s(again_ms))
                except ClientClosed:
                    raise
                except EscrowMQError as error:
                    if not self._is_stopping.is_set():
                        _log.warning("checks of %s: %s", self.group, error)
                    self._is_stopping.wait(_PAUSE_MS / 1_000)

    def stop(self) -> None:
        """Make `run` return after the checks that it has; from any thread.

        Not in a signal handler, which may interrupt the checker where it holds a lock.
        """
        self._is_stopping.set()
        if self._poller is not None:
            self._poller.finish()

    def run_once(self) -> int:
        """Wait for checks and answer them; their number. Raises EscrowMQError."""
        return self._answer_checks(self._client, self._client, self._wait_ms)

    def _answer_checks(self, receiving: Client, answering: Client, wait_ms: int) -> int:
        if not self._is_known and not self._exists(receiving):
            self._is_stopping.wait(self._wait_ms / 1_000)
            return 0
        received = receiving.receive_checks(self.group, max_checks=_MOST_CHECKS, wait_ms=wait_ms)
        sent = [(check, self._decided(check)) for check in received.checks]
        if sent:
            try:
                answered = answering.answer_checks(self.group, _inputs(sent))
            except Refused as refused:
                answered = refused.answer
            self._count(sent, answered)
        return len(sent)

    def _exists(self, client: Client) -> bool:
        """Look the group up: a receive would create it, and a wrong name go unnoticed."""
        try:
            client.get_producer_group(self.group)
        except NotFound:
            self._warn_of_unknown_group()
            return False
        self._is_known = True
        return True

    def _decided(self, check: Check) -> CheckAnswer:
        try:
            return answer_of(called(self._answer, check))
        except Exception as error:  # noqa: BLE001  the check has to be answered all the same
            return self._unknown(check, error)


class AsyncChecker(_BaseChecker):
    """Answers the checks of a producer group on an event loop: `answer=markers.outcome_async`.

    Cancel the task of `run` to stop it.
    """

    def __init__(
        self, client: AsyncClient, group: str, answer: AsyncAnswer, *, wait_ms: int = 20_000
    ) -> None:
        super().__init__(group, wait_ms)
        self._client = client
        self._answer = answer

    async def run(self) -> None:
        """Answer checks until the task is cancelled."""
        async with AsyncPoller(self._client, self._outage()) as poller:
            while True:
                again_ms = _now_ms() + min(_PAUSE_MS, self._wait_ms)
                try:
                    if not await self._answer_checks(poller):
                        await asyncio.sleep(_left_s(again_ms))
                except ClientClosed:
                    raise
                except EscrowMQError as error:
                    _log.warning("checks of %s: %s", self.group, error)
                    await asyncio.sleep(_PAUSE_MS / 1_000)

    async def run_once(self) -> int:
        """Wait for checks and answer them; their number. Raises EscrowMQError."""
        return await self._answer_checks(self._client)

    async def _answer_checks(self, receiving: AsyncClient) -> int:
        if not self._is_known and not await self._exists(receiving):
            await asyncio.sleep(self._wait_ms / 1_000)
            return 0
        received = await receiving.receive_checks(
            self.group, max_checks=_MOST_CHECKS, wait_ms=self._wait_ms
        )
        sent = [(check, await self._decided(check)) for check in received.checks]
        if sent:
            try:
                answered = await self._client.answer_checks(self.group, _inputs(sent))
            except Refused as refused:
                answered = refused.answer
            self._count(sent, answered)
        return len(sent)

    async def _exists(self, client: AsyncClient) -> bool:
        """Look the group up: a receive would create it, and a wrong name go unnoticed."""
        try:
            await client.get_producer_group(self.group)
        except NotFound:
            self._warn_of_unknown_group()
            return False
        self._is_known = True
        return True

    async def _decided(self, check: Check) -> CheckAnswer:
        try:
            decided: object = called(self._answer, check)
            if inspect.isawaitable(decided):
                decided = await awaited(decided)
            return answer_of(cast("Decided", decided))
        except Exception as error:  # noqa: BLE001  the check has to be answered all the same
            return self._unknown(check, error)
