"""Asking producers about undecided transactions: the sweep that opens checks, what an answer does, holding and resuming."""

import asyncio
from collections import deque

import structlog

from storage.errors import CheckNotOpen, StorageError, UnavailableError
from storage.message import Durability
from txn.checkback_plan import HoldReason, OnExhausted, Plan, Step, plan_check
from txn.half_message import AnsweredUnknown, CheckFailed, Held, Resumed
from txn.journal import Journal
from txn.open_checks import LeasedCheck, parse_check_id
from txn.pending import Transaction
from txn.states import Resolver, TxnEvent, TxnState, next_state
from txn.turns import Turns

log = structlog.get_logger()

_RETRY_MS = 60_000  # one that was set aside is looked at again
_SLICE = 2_000  # transactions looked at in one turn of the loop


class Asking:
    """The event loop's."""

    def __init__(self, journal: Journal, turns: Turns) -> None:
        self._journal = journal
        self._table = journal.table
        self._checks = journal.checks
        self._clock = journal.clock
        self._turns = turns
        self._is_stopping = False
        self._set_aside: dict[str, str] = {}  # transaction id to why its checks cannot be ended

    def reopen(self) -> None:
        """After a start: what was being asked is asked again, under the same id."""
        for transaction in self._table:
            if transaction.state is TxnState.PREPARED and transaction.asked_at_ms is not None:
                self._checks.offer(transaction)

    def stop(self) -> None:
        """Nobody waits for a check any longer."""
        self._is_stopping = True
        self._checks.wake_all()

    async def sweep(self, now_ms: int) -> int:
        """Offer the checks that are due, end what is exhausted; how many transactions it acted on."""
        acted = self._checks.return_expired()
        exhausted: deque[tuple[Transaction, HoldReason]] = deque()
        try:
            for number, transaction in enumerate(self._table.take_due(now_ms), 1):
                plan = self._plan(transaction, now_ms)
                if plan.step is Step.EXHAUST:
                    assert plan.reason is not None
                    exhausted.append((transaction, plan.reason))
                else:
                    if plan.step is Step.ASK:
                        transaction.asked_at_ms = now_ms
                        self._checks.offer(transaction)
                        acted += 1
                    assert plan.look_again_ms is not None
                    self._table.look_again(transaction, plan.look_again_ms)
                if number % _SLICE == 0:
                    await asyncio.sleep(0)  # after a long stop a million may be due at once
            while exhausted:
                acted += await self._end_or_set_aside(*exhausted[0], now_ms)
                exhausted.popleft()
        finally:
            # Whoever swept may have gone in the middle, as a poll does whose time is up: nobody is forgotten for that.
            for left, _ in exhausted:
                self._table.look_again(left, now_ms)
        return acted

    def set_aside(self) -> dict[str, str]:
        """Undecided transactions whose checks cannot be ended, and why."""
        table = self._table
        self._set_aside = {
            id_: reason
            for id_, reason in self._set_aside.items()
            if (found := table.get(id_)) is not None and found.state is TxnState.PREPARED
        }
        return self._set_aside

    async def _end_or_set_aside(self, transaction: Transaction, reason: HoldReason, now_ms: int) -> bool:
        """One that cannot be ended is looked at again after a while, and the others go on. Was it ended?

        Raises what says that the store takes nothing.
        """
        try:
            await self._turns.uncancelled(self._exhaust(transaction, reason))
        except (UnavailableError, StorageError):
            raise
        except Exception as error:
            log.exception("transaction_set_aside", transaction_id=transaction.transaction_id)
            self._set_aside[transaction.transaction_id] = f"{type(error).__name__}: {error}"[:1_000]
            self._table.look_again(transaction, now_ms + _RETRY_MS)
            return False
        self._set_aside.pop(transaction.transaction_id, None)
        return True

    async def receive(self, group: str, *, max_checks: int, lease_ms: int, wait_ms: int) -> list[LeasedCheck]:
        """Work items of a producer group; waits for one when there is none."""
        checks: list[LeasedCheck] = []
        try:
            async with asyncio.timeout(wait_ms / 1000 if wait_ms else None):
                while True:
                    await self.sweep(self._clock.wall_ms())
                    checks = self._checks.lease(group, max_checks=max_checks, lease_ms=lease_ms)
                    if checks or not wait_ms or self._is_stopping:
                        return checks
                    await self._checks.wait(group)
        except TimeoutError:
            return checks

    async def asked_about(self, group: str, check_id: str) -> tuple[Transaction, int]:
        """The transaction of a check and the check's number. Raises CheckNotOpen where the group has no such check."""
        parsed = parse_check_id(check_id)
        transaction = None if parsed is None else await self._journal.recall(parsed[0])
        if parsed is None or transaction is None or transaction.producer_group != group:
            raise CheckNotOpen(f"no check {check_id} of producer group {group} is open")
        number = parsed[1]
        if not 1 <= number <= transaction.checks_answered + 1:
            raise CheckNotOpen(f"transaction {transaction.transaction_id} has no check {number} open")
        return transaction, number

    async def answered_unknown(
        self,
        transaction: Transaction,
        number: int,
        recheck_after_ms: int | None,
        evidence: dict[str, str] | None,
        latency_ms: int | None,
    ) -> Transaction:
        """The producer does not know yet. Raises TransactionConflict, and what `append` raises."""
        return await self._turns.uncancelled(
            self._answered_unknown(transaction, number, recheck_after_ms, evidence, latency_ms)
        )

    async def note_failed(self, check: LeasedCheck, why: str, detail: str, *, latency_ms: int) -> None:
        """Record a try that gave no answer. Raises what `append` raises."""
        await self._turns.uncancelled(self._note_failed(check, why, detail, latency_ms))

    async def resume(self, transaction: Transaction) -> Transaction:
        """Ask about a held transaction again; a prepared one stays as it is. Raises TransactionConflict."""
        return await self._turns.uncancelled(self._resume(transaction))

    def make_due(self, transaction: Transaction) -> None:
        """Have its check handed out at once, where none is open."""
        now_ms = self._clock.wall_ms()
        if transaction.state is TxnState.PREPARED and transaction.asked_at_ms is None:
            transaction.next_check_at_ms = min(transaction.next_check_at_ms, now_ms)
            self._table.look_again(transaction, now_ms)

    async def _answered_unknown(
        self,
        transaction: Transaction,
        number: int,
        recheck_after_ms: int | None,
        evidence: dict[str, str] | None,
        latency_ms: int | None,
    ) -> Transaction:
        async with self._turns.of(transaction.transaction_id):
            state = next_state(
                transaction.transaction_id,
                transaction.state,
                TxnEvent.UNKNOWN,
                resolved_by=transaction.resolved_by or "",
            )
            if state is TxnState.HELD or number <= transaction.checks_answered:
                return transaction  # nothing is decided, and no budget is used twice for one check
            wait_ms = transaction.policy.interval_ms if recheck_after_ms is None else recheck_after_ms
            now_ms = self._clock.wall_ms()
            event = AnsweredUnknown(
                transaction_id=transaction.transaction_id,
                revision=transaction.revision + 1,
                check_number=number,
                next_check_at_ms=now_ms + wait_ms,
                evidence=evidence,
                latency_ms=latency_ms,
            )
            await self._journal.record(event)
            plan = self._plan(transaction, now_ms)
            if plan.step is Step.EXHAUST:
                assert plan.reason is not None
                await self._end_checks(transaction, plan.reason)
            return transaction

    async def _note_failed(self, check: LeasedCheck, why: str, detail: str, latency_ms: int) -> None:
        transaction = check.transaction
        async with self._turns.of(transaction.transaction_id):
            if transaction.state is not TxnState.PREPARED or transaction.asked_at_ms is None:
                return  # it was answered or decided meanwhile
            event = CheckFailed(
                transaction_id=transaction.transaction_id,
                revision=transaction.revision + 1,
                check_number=transaction.checks_answered + 1,
                asked_at_ms=transaction.asked_at_ms,
                why=why,
                detail=detail,
                latency_ms=latency_ms,
            )
            await self._journal.record(event, Durability.BUFFERED)

    async def _exhaust(self, transaction: Transaction, reason: HoldReason) -> None:
        async with self._turns.of(transaction.transaction_id):
            # It may have been answered while the sweep waited for its turn.
            if transaction.state is TxnState.PREPARED and self._plan(transaction, self._clock.wall_ms()).step is Step.EXHAUST:
                await self._end_checks(transaction, reason)

    async def _end_checks(self, transaction: Transaction, reason: HoldReason) -> None:
        if transaction.policy.on_exhausted is OnExhausted.ROLLBACK:
            await self._journal.decide(
                transaction, self._journal.op(transaction, TxnState.ROLLED_BACK, Resolver.POLICY, reason)
            )
            return
        held = Held(transaction_id=transaction.transaction_id, revision=transaction.revision + 1, reason=reason)
        await self._journal.record(held)
        log.warning("transaction_held", transaction_id=transaction.transaction_id, reason=reason.value)

    async def _resume(self, transaction: Transaction) -> Transaction:
        async with self._turns.of(transaction.transaction_id):
            was = transaction.state
            next_state(transaction.transaction_id, was, TxnEvent.RESUME, resolved_by=transaction.resolved_by or "")
            if was is TxnState.HELD:
                await self._journal.record(
                    Resumed(
                        transaction_id=transaction.transaction_id,
                        revision=transaction.revision + 1,
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
        )
