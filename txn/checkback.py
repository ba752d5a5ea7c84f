"""Checks of undecided transactions: the sweep that opens checks, the effect of answers, holding and
resuming.
"""

import asyncio

import structlog

from storage.errors import CheckNotOpen, StorageError, UnavailableError, reason_of
from storage.keyed_locks import KeyedLocks
from storage.message import Durability
from txn.checkback_plan import HoldReason, OnExhausted, Plan, Step, plan_check
from txn.half_message import AnsweredUnknown, CheckAnswer, CheckFailed, Held, Resumed
from txn.journal import Journal
from txn.open_checks import LeasedCheck, parse_check_id
from txn.states import Resolver, TxnEvent, TxnState, next_state
from txn.transaction import Transaction

log = structlog.get_logger()

_RETRY_MS = 60_000  # a parked transaction is tried again
_TOGETHER = 500  # transactions whose checks are ended at once: one sync serves them all
_END_SECONDS = 1.0  # for which a sweep waits for these; those that take longer go on beside it


class Checkback:
    """Opens checks, records their answers, and ends what is exhausted. Event loop only."""

    def __init__(self, journal: Journal, locks: KeyedLocks) -> None:
        self._journal = journal
        self._table = journal.table
        self._checks = journal.checks
        self._clock = journal.clock
        self._locks = locks
        self._is_stopping = False
        self._started_ms = 0
        self._exhausted: dict[str, Transaction] = {}  # found at any look, ended by the sweep
        # Those of them whose end is appended now. It may have to wait for another machine, as long
        # as that is away: no sweep waits for it.
        self._ending: dict[str, asyncio.Task[bool]] = {}
        self._parked: dict[str, str] = {}  # transaction id to why its checks cannot be ended

    def reopen(self) -> None:
        """Open the checks again that were open before the restart, with the same ids."""
        self._started_ms = self._clock.wall_ms()
        for transaction in self._table:
            if transaction.state is TxnState.PREPARED and transaction.asked_at_ms is not None:
                self._checks.offer(transaction)

    def stop(self) -> None:
        """End all waits for a check."""
        self._is_stopping = True
        self._checks.wake_all()

    async def sweep(self, now_ms: int) -> int:
        """Offer the checks that are due, and end exhausted ones; the number of transactions
        changed.
        """
        acted = self._checks.return_expired() + await self._offer_due(now_ms)
        waiting = [
            one for one in self._exhausted.values() if one.transaction_id not in self._ending
        ]
        while waiting and len(self._ending) < _TOGETHER:
            room = _TOGETHER - len(self._ending)
            some, waiting = waiting[:room], waiting[room:]
            begun = {
                one.transaction_id: asyncio.ensure_future(self._end_or_park(one, now_ms))
                for one in some
            }
            for task in begun.values():
                task.add_done_callback(_note_seen)
            self._ending |= begun
            await asyncio.wait(begun.values(), timeout=_END_SECONDS)
            acted += self._count_ended()
        return acted + self._count_ended()

    def _count_ended(self) -> int:
        """The number of transactions whose checks have ended since the last call. Raises the error
        by which the store refuses writes: the next sweep tries again.
        """
        done = {id_: task for id_, task in self._ending.items() if task.done()}
        for id_ in done:
            del self._ending[id_]
        errors = [error for task in done.values() if (error := task.exception()) is not None]
        if errors:
            raise errors[0]
        return sum([task.result() for task in done.values()])

    async def _offer_due(self, now_ms: int) -> int:
        """Open the checks that are due; their number. Exhausted ones are left to the sweep, since
        ending them writes to the disk.
        """
        offered = 0
        for transaction in self._table.take_due(now_ms):
            if transaction is None:
                await asyncio.sleep(0)  # after a long stop a million may be due at once
                continue
            plan = self._plan(transaction, now_ms)
            if plan.step is Step.EXHAUST:
                self._exhausted[transaction.transaction_id] = transaction
            else:
                if plan.step is Step.ASK:
                    transaction.asked_at_ms = now_ms
                    self._checks.offer(transaction)
                    offered += 1
                assert plan.replan_at_ms is not None
                self._table.replan(transaction, plan.replan_at_ms)
        return offered

    def parked(self) -> dict[str, str]:
        """Undecided transactions whose checks cannot be ended, with the error."""
        table = self._table
        self._parked = {
            id_: reason
            for id_, reason in self._parked.items()
            if (found := table.get(id_)) is not None and found.state is TxnState.PREPARED
        }
        return self._parked

    async def _end_or_park(self, transaction: Transaction, now_ms: int) -> bool:
        """End the checks of a transaction; whether that succeeded. If not, it is parked and tried
        again after a while.

        Raises the error by which the store refuses writes: the next sweep tries again.
        """
        transaction_id = transaction.transaction_id
        try:
            await self._locks.shielded(self._exhaust(transaction))
        except (UnavailableError, StorageError):
            raise
        except Exception as error:
            log.exception("transaction_set_aside", transaction_id=transaction_id)
            self._parked[transaction_id] = reason_of(error)
            self._table.replan(transaction, now_ms + _RETRY_MS)
            self._exhausted.pop(transaction_id, None)
            return False
        self._exhausted.pop(transaction_id, None)
        self._parked.pop(transaction_id, None)
        return True

    async def receive(
        self, group: str, *, max_checks: int, lease_ms: int, wait_ms: int
    ) -> list[LeasedCheck]:
        """Lease checks of a producer group; waits if there are none."""
        checks: list[LeasedCheck] = []
        try:
            async with asyncio.timeout(wait_ms / 1000 if wait_ms else None):
                while True:
                    await self._offer_due(self._clock.wall_ms())
                    checks = self._checks.lease(group, max_checks=max_checks, lease_ms=lease_ms)
                    if checks or not wait_ms or self._is_stopping:
                        return checks
                    await self._checks.wait(group)
        except TimeoutError:
            return checks

    async def asked_about(self, group: str, check_id: str) -> tuple[Transaction, CheckAnswer]:
        """The transaction of a check, and its state. Raises CheckNotOpen if the check was never
        sent to this group.
        """
        parsed = parse_check_id(check_id)
        transaction = None if parsed is None else await self._journal.recall(parsed[0])
        if parsed is None or transaction is None or transaction.producer_group != group:
            raise CheckNotOpen(f"no check {check_id} of producer group {group} is open")
        number, now_ms = parsed[1], self._clock.wall_ms()
        is_wanted = (  # by an operator
            transaction.state is TxnState.HELD
            and number == transaction.checks_answered + 1
            and self._checks.leased_at_ms(transaction) is not None
        )
        if not is_wanted and not _was_asked(transaction, number, now_ms):
            raise CheckNotOpen(
                f"transaction {transaction.transaction_id} has no check {number} open"
            )
        sent_at_ms = None
        if number > transaction.checks_answered:
            # A check that was leased before a restart was leased when it was due, or later.
            sent_at_ms = self._checks.leased_at_ms(transaction) or min(
                transaction.next_check_at_ms, now_ms
            )
        return transaction, CheckAnswer(check_number=number, sent_at_ms=sent_at_ms)

    async def answered_unknown(
        self, transaction: Transaction, answer: CheckAnswer, *, recheck_after_ms: int | None
    ) -> Transaction:  # fmt: skip
        """Record the answer "unknown". Raises TransactionConflict, and what `append` raises."""
        return await self._locks.shielded(
            self._answered_unknown(transaction, answer, recheck_after_ms)
        )

    async def note_failed(
        self, check: LeasedCheck, why: str, detail: str, *, latency_ms: int, out_of_turn: bool
    ) -> None:
        """Record a try without an answer; for a held transaction only one that an operator
        requested. Raises what `append` raises.
        """
        await self._locks.shielded(self._note_failed(check, why, detail, latency_ms, out_of_turn))

    async def resume(self, transaction: Transaction) -> Transaction:
        """Check a held transaction again; a prepared one does not change. Raises
        TransactionConflict.
        """
        return await self._locks.shielded(self._resume(transaction))

    def make_due(self, transaction: Transaction) -> None:
        """Make the check due now, unless one is open. For a held transaction: once, until it is
        answered or the service stops.
        """
        now_ms = self._clock.wall_ms()
        if transaction.state is TxnState.HELD and not self._checks.is_leased(transaction):
            self._checks.offer(transaction)
        if transaction.state is TxnState.PREPARED and transaction.asked_at_ms is None:
            transaction.next_check_at_ms = min(transaction.next_check_at_ms, now_ms)
            self._table.replan(transaction, now_ms)

    async def _answered_unknown(
        self, transaction: Transaction, answer: CheckAnswer, recheck_after_ms: int | None
    ) -> Transaction:  # fmt: skip
        async with self._locks.lock(transaction.transaction_id):
            state = next_state(
                transaction.transaction_id,
                transaction.state,
                TxnEvent.UNKNOWN,
                resolved_by=transaction.resolved_by or "",
            )
            if state is TxnState.HELD:
                self._checks.withdraw(transaction)  # an operator had it asked once
            if state is TxnState.HELD or answer.check_number <= transaction.checks_answered:
                return transaction  # nothing is decided, and no budget is used twice for one check
            wait_ms = (
                transaction.policy.interval_ms if recheck_after_ms is None else recheck_after_ms
            )
            now_ms = self._clock.wall_ms()
            event = AnsweredUnknown(
                transaction_id=transaction.transaction_id,
                revision=transaction.revision + 1,
                begun_as=transaction.sequence,
                check_number=answer.check_number,
                next_check_at_ms=now_ms + wait_ms,
                evidence=answer.evidence,
                latency_ms=answer.latency_ms,
                sent_at_ms=answer.sent_at_ms,
            )
            await self._journal.record(event)
            plan = self._plan(transaction, now_ms)
            if plan.step is Step.EXHAUST:
                assert plan.reason is not None
                await self._end_checks(transaction, plan.reason)
            return transaction

    async def _note_failed(
        self, check: LeasedCheck, why: str, detail: str, latency_ms: int, out_of_turn: bool
    ) -> None:
        transaction = check.transaction
        async with self._locks.lock(transaction.transaction_id):
            if transaction.state.is_decided or check.number != transaction.checks_answered + 1:
                return  # it was decided or answered meanwhile
            if transaction.state is TxnState.HELD and not out_of_turn:
                return  # that is its last event
            event = CheckFailed(
                transaction_id=transaction.transaction_id,
                revision=transaction.revision + 1,
                begun_as=transaction.sequence,
                check_number=transaction.checks_answered + 1,
                asked_at_ms=transaction.asked_at_ms,
                why=why,
                detail=detail,
                latency_ms=latency_ms,
            )
            await self._journal.record(event, Durability.BUFFERED)

    async def _exhaust(self, transaction: Transaction) -> None:
        async with self._locks.lock(transaction.transaction_id):
            if transaction.state is not TxnState.PREPARED:
                return
            # It may have been answered while the sweep waited for its turn.
            plan = self._plan(transaction, self._clock.wall_ms())
            if plan.step is Step.EXHAUST:
                assert plan.reason is not None
                await self._end_checks(transaction, plan.reason)
            else:
                self._table.replan(transaction, plan.replan_at_ms or 0)

    async def _end_checks(self, transaction: Transaction, reason: HoldReason) -> None:
        if transaction.policy.on_exhausted is OnExhausted.ROLLBACK:
            await self._journal.decide(
                transaction,
                self._journal.op(transaction, TxnState.ROLLED_BACK, Resolver.POLICY, reason),
            )
            return
        held = Held(
            transaction_id=transaction.transaction_id,
            revision=transaction.revision + 1,
            begun_as=transaction.sequence,
            reason=reason,
        )
        await self._journal.record(held)
        log.warning(
            "transaction_held", transaction_id=transaction.transaction_id, reason=reason.value
        )

    async def _resume(self, transaction: Transaction) -> Transaction:
        async with self._locks.lock(transaction.transaction_id):
            was = transaction.state
            next_state(
                transaction.transaction_id,
                was,
                TxnEvent.RESUME,
                resolved_by=transaction.resolved_by or "",
            )
            if was is TxnState.HELD:
                await self._journal.record(
                    Resumed(
                        transaction_id=transaction.transaction_id,
                        revision=transaction.revision + 1,
                        begun_as=transaction.sequence,
                        next_check_at_ms=self._clock.wall_ms(),
                    )
                )
            return transaction

    def _plan(self, transaction: Transaction, now_ms: int) -> Plan:
        return plan_check(
            transaction.policy,
            now_ms=now_ms,
            due_ms=transaction.next_check_at_ms,
            asked_ms=transaction.asked_at_ms,
            answers=transaction.answers,
            started_ms=self._started_ms,
        )


def _was_asked(transaction: Transaction, number: int, now_ms: int) -> bool:
    """Whether the producer was sent this check, as far as is known. A restart forgets which checks
    were leased, so a check that is due by its time counts as sent.
    """
    if number != transaction.checks_answered + 1:
        return 1 <= number <= transaction.checks_answered
    if transaction.asked_at_ms is not None or transaction.resolved_by is Resolver.CHECK:
        return True
    if transaction.hold_reason is not None:
        return transaction.hold_reason == HoldReason.UNREACHABLE
    ended_ms = now_ms if transaction.resolved_at_ms is None else transaction.resolved_at_ms
    return transaction.next_check_at_ms <= ended_ms


def _note_seen(task: asyncio.Task[bool]) -> None:
    """Mark the error as seen: at a stop no later sweep asks for it, and asyncio would log it."""
    _ = task.cancelled() or task.exception()
