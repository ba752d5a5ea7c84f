"""Sends checks to producer groups that have a callback: as many at once as their hosts may have.

A check that is being sent, or waits to be sent again, is leased from the open checks, as by a
producer that receives it: no other caller gets it, and a decision made meanwhile ends it. Which
checks wait and how often they failed is in memory only; after a restart they are sent at once, with
the same ids.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from storage.circuit import Circuit
from storage.clock import Clock
from storage.errors import MessagingError, TransactionConflict
from txn.coordinator import TransactionCoordinator
from txn.open_checks import LeasedCheck
from txn.producer import Answered, Failed, Failure, ProducerClient, Route
from txn.retry_plan import wait_before_retry

log = structlog.get_logger()


class CheckSender:
    """Sends open checks to the callbacks of their producer groups. Event loop only."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        client: ProducerClient,
        clock: Clock,
        *,
        random: Callable[[], float],
    ) -> None:
        """`random`: a new number from 0 to below 1 each time."""
        self._coordinator = coordinator
        self._client = client
        self._clock = clock
        self._random = random
        self._under_way: dict[str, set[asyncio.Task[Any]]] = {}
        self._circuits: dict[str, Circuit] = {}
        # others than checks, under way
        self._questions: set[asyncio.Task[Answered | Failed]] = set()
        self._wanting: Counter[str] = Counter()  # questions that wait for room, by host
        self._is_stopping = False

    @property
    def under_way(self) -> int:
        return sum(map(len, self._under_way.values()))

    def pause_ms(self, group: str) -> int:
        """How long no check is sent to the host of a group, because of failed tries."""
        route = self._client.route(group)
        circuit = None if route is None else self._circuits.get(route.host)
        return (
            0 if circuit is None else max(0, circuit.closed_again_ms - self._clock.monotonic_ms())
        )

    def next_due_ms(self) -> int | None:
        """When the next paused host that has checks waiting may get one again, on the monotonic
        clock.
        """
        pauses = [
            pause_ms
            for group in self._coordinator.groups_to_ask()
            if (pause_ms := self.pause_ms(group))
        ]
        return self._clock.monotonic_ms() + min(pauses) if pauses else None

    async def run_once(self) -> int:
        """Begin to send the checks that are due, as far as hosts have room; their number."""
        return self._send_due()

    async def ask_now(self, check: LeasedCheck, *, dry_run: bool) -> Answered | Failed:
        """Ask out of turn, as one of the checks that the host may have at once.

        In a dry run nothing comes of the answer.

        Raises what `answer_sent` raises.
        """
        group = check.transaction.producer_group
        has_asked = False

        async def ask() -> Answered | Failed:
            nonlocal has_asked
            has_asked = True
            return await self._client.ask(group, check)

        outcome = await self.ask_beside(group, ask)
        if isinstance(outcome, Answered) and not dry_run:
            await self._coordinator.answer_sent(check, outcome)
        elif isinstance(outcome, Failed) and has_asked and not self._is_stopping and not dry_run:
            await self._coordinator.note_failed_check(
                check,
                outcome.why.value,
                outcome.detail,
                latency_ms=outcome.latency_ms,
                out_of_turn=True,
            )
        return outcome

    async def ask_beside(
        self, group: str, ask: Callable[[], Coroutine[Any, Any, Answered | Failed]]
    ) -> Answered | Failed:
        """Ask something else of a group, as one of the checks that its host may have at once; `ask`
        ends by itself.

        What comes of it counts for the host as a try does. A host that is left alone is not asked.
        """
        route = self._client.route(group)
        if route is None:
            return Failed(Failure.UNREACHABLE, "the group is not asked by webhook any more")
        if not await self._wait_for_room(route):
            why = (
                "the service stops"
                if self._is_stopping
                else "too many tries in a row failed there, and its host is left alone"
            )
            return Failed(Failure.UNREACHABLE, why)
        task = asyncio.create_task(ask(), name=f"question-{group}")
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)
        self._count(route.host, task)
        try:
            outcome = await task
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            return Failed(Failure.UNREACHABLE, "the service stops")
        self._note(route.host, has_failed=isinstance(outcome, Failed) and outcome.blames_host)
        return outcome

    def begin_stop(self) -> None:
        """Send nothing new, and fail the checks that were asked out of turn.

        Checks go on until `stop`.
        """
        self._is_stopping = True
        for question in self._questions:
            question.cancel()

    async def stop(self) -> None:
        """Abandon checks in progress: each is sent again after the next start, with the same id."""
        self._is_stopping = True
        tasks = [task for tasks in self._under_way.values() for task in tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _send_due(self) -> int:
        count = 0
        for group in [] if self._is_stopping else self._coordinator.groups_to_ask():
            route = self._client.route(group)
            if route is None:
                continue
            room = self._room(route) - self._wanting[route.host]
            for check in self._coordinator.take_checks(group, max_checks=room) if room > 0 else ():
                self._start(route, check)
                count += 1
        return count

    def _room(self, route: Route) -> int:
        """How many more tries the host may have now."""
        under_way = self._under_way.get(route.host, ())
        circuit = self._circuits.get(route.host) or Circuit()
        return circuit.room(
            self._clock.monotonic_ms(), concurrency=route.concurrency, under_way=len(under_way)
        )

    async def _wait_for_room(self, route: Route) -> bool:
        """Wait for room at the host. False if the host is paused, or the service stops."""
        self._wanting[route.host] += 1
        try:
            while not self._is_stopping:
                if self._room(route):
                    return True
                under_way = self._under_way.get(route.host)
                if not under_way:
                    return False
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            return False
        finally:
            self._wanting[route.host] -= 1
            self._wanting += Counter()  # drops the hosts with none left

    def _start(self, route: Route, check: LeasedCheck) -> None:
        self._count(
            route.host,
            asyncio.create_task(self._send(route, check), name=f"check-{check.check_id}"),
        )

    def _count(self, host: str, task: asyncio.Task[Any]) -> None:
        """Count the task as a try of the host, until it ends."""
        under_way = self._under_way.setdefault(host, set())
        under_way.add(task)

        def ended(_: asyncio.Task[Any]) -> None:
            under_way.discard(task)
            if not under_way and self._under_way.get(host) is under_way:
                del self._under_way[host]
            self._send_due()  # there is room for another one

        task.add_done_callback(ended)

    async def _send(self, route: Route, check: LeasedCheck) -> None:
        transaction = check.transaction
        if transaction.state.is_decided:
            return
        try:
            outcome = await self._client.ask(transaction.producer_group, check)
            self._note(route.host, has_failed=isinstance(outcome, Failed) and outcome.blames_host)
            if transaction.state.is_decided:
                log.info("check_dropped", check_id=check.check_id)
            elif isinstance(outcome, Answered):
                await self._answered(check, outcome)
            else:
                await self._failed(route, check, outcome)
        except MessagingError as error:
            # The store does not take what is to be written now; the producer will be asked again.
            log.warning("check_not_recorded", check_id=check.check_id, error=str(error))
            self._postpone(check, None)
        except Exception:
            log.exception("check_failed_unexpectedly", check_id=check.check_id)
            self._postpone(check, None)

    async def _answered(self, check: LeasedCheck, answer: Answered) -> None:
        try:
            await self._coordinator.answer_sent(check, answer)
        except TransactionConflict:
            log.info("check_dropped", check_id=check.check_id)

    async def _failed(self, route: Route, check: LeasedCheck, failed: Failed) -> None:
        group = check.transaction.producer_group
        log.info(
            "check_failed",
            check_id=check.check_id,
            host=route.host,
            why=failed.why.value,
            detail=failed.detail,
        )
        if failed.is_gone:
            log.warning("check_endpoint_gone", producer_group=group, host=route.host)
            await self._client.disable(group, route.host)
        # Postponed first: what is written about it may take its time.
        self._postpone(check, failed.retry_after_ms)
        await self._coordinator.note_failed_check(
            check, failed.why.value, failed.detail, latency_ms=failed.latency_ms
        )

    def _postpone(self, check: LeasedCheck, retry_after_ms: int | None) -> None:
        failures = self._coordinator.count_failure(check)
        interval_ms = check.transaction.policy.interval_ms
        wait_ms = wait_before_retry(
            interval_ms, failures=failures, retry_after_ms=retry_after_ms, random=self._random()
        )
        self._coordinator.postpone_check(check, wait_ms)

    def _note(self, host: str, *, has_failed: bool) -> None:
        if has_failed:
            self._circuits.setdefault(host, Circuit()).note(
                self._clock.monotonic_ms(), has_failed=True
            )
        else:
            self._circuits.pop(host, None)
