"""C21 for transactions and timers: well-known mistakes, each planted and each found by the campaign
that is there for it.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from scheduler.cron_log import CronLog
from scheduler.schedule_log import ScheduleLog
from scheduler.schedule_service import ScheduleService
from storage.derived_table import DerivedTable
from storage.keyed_locks import KeyedLocks
from storage.message import Durability, Message
from tests.fault.simulated_day import Day
from tests.fault.transaction_machine import TransactionMachine
from tests.support.model import first_failure
from txn import half_message, replay, states
from txn.check_sender import CheckSender
from txn.coordinator import TransactionCoordinator
from txn.half_message import Op
from txn.journal import Journal
from txn.open_checks import LeasedCheck, OpenChecks
from txn.producer import Answered, Failed, Route
from txn.states import TxnEvent, TxnState
from txn.table import TransactionTable
from txn.transaction import Transaction, from_halves

pytestmark = pytest.mark.faults

EXAMPLES = 300  # of 2,000 that C9 runs
# more than any needs: which examples a seed stands for changes with every line of the project
SEEDS = range(1, 9)
DAYS = range(8)


def transactions_find(seeds: Iterable[int] = SEEDS) -> str:
    """C9's first broken promise."""
    return first_failure(TransactionMachine, seeds, examples=EXAMPLES, steps=50)


def days_find(days: Iterable[int] = DAYS) -> str:
    """C10's first broken promise."""
    return next((found for number in days if (found := _found(Day(number).run))), "")


def _found(run) -> str:
    try:
        run()
    except Exception as broken:
        return f"{type(broken).__name__}: {broken}"
    return ""


def test_a_decision_that_is_overwritten_is_found(monkeypatch):
    monkeypatch.setattr(TxnState, "is_decided", property(lambda self: self is TxnState.ROLLED_BACK))
    monkeypatch.setitem(
        states.TRANSITIONS, (TxnState.COMMITTED, TxnEvent.ROLLBACK), TxnState.ROLLED_BACK
    )

    assert transactions_find()


def test_a_refusal_that_is_told_as_a_replay_is_found(monkeypatch):
    monkeypatch.setitem(
        states.TRANSITIONS, (TxnState.COMMITTED, TxnEvent.ROLLBACK), TxnState.COMMITTED
    )

    assert "no order explains" in transactions_find()


def test_decisions_that_do_not_wait_for_one_another_are_found(monkeypatch):
    @asynccontextmanager
    async def at_once(self: KeyedLocks, transaction_id: str) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(KeyedLocks, "lock", at_once)

    assert transactions_find()


def test_an_op_that_is_written_before_its_messages_is_found(monkeypatch):
    async def op_first(
        self: Journal, transaction: Transaction, op: Op, finals: Sequence[Message] = ()
    ) -> None:
        key = transaction.idempotency_key
        await self.append([half_message.op_message(op, idempotency_key=key)], Durability.SYNCED)
        appended = await self.append(finals, Durability.SYNCED) if finals else []
        self.apply_decision(transaction, op, [final.queue_offset for final in appended])

    monkeypatch.setattr(Journal, "decide", op_first)

    assert transactions_find()


def test_a_decision_that_is_answered_before_its_sync_is_found(monkeypatch):
    append = Journal.append

    async def unsynced(
        self: Journal, messages: Sequence[Message], durability: object, **how: bool
    ) -> object:
        return await append(self, messages, durability and Durability.BUFFERED, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "append", unsynced)

    assert transactions_find()


def test_an_op_that_names_one_half_of_several_is_found(monkeypatch):
    op_message = half_message.op_message

    def first_only(op: Op, **fields: object) -> Message:
        return op_message(op._replace(half_offsets=op.half_offsets[:1]), **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(half_message, "op_message", first_only)

    assert transactions_find()


def test_an_unknown_that_rolls_back_is_found(monkeypatch):
    answered = CheckSender._answered

    async def at_its_word(self: CheckSender, check: LeasedCheck, answer: Answered) -> None:
        is_unknown = answer.decision is TxnEvent.UNKNOWN
        await answered(
            self, check, answer._replace(decision=TxnEvent.ROLLBACK) if is_unknown else answer
        )

    monkeypatch.setattr(CheckSender, "_answered", at_its_word)

    assert "no order explains" in transactions_find()


def test_a_try_without_an_answer_that_is_counted_as_one_is_found(monkeypatch):
    async def counted(self: CheckSender, route: Route, check: LeasedCheck, failed: Failed) -> None:
        await self._answered(check, Answered(TxnEvent.UNKNOWN))

    monkeypatch.setattr(CheckSender, "_failed", counted)

    # By the count of answers, or by a transaction that is held before its time: whichever an
    # example comes to first.
    found = transactions_find()
    assert "answered were" in found or "no order explains" in found


def test_an_idempotency_key_that_a_crash_forgets_is_found(monkeypatch):
    def without_key(halves: list) -> Transaction:
        return msgspec.structs.replace(from_halves(halves), idempotency_key=None)

    monkeypatch.setattr(replay, "from_halves", without_key)

    assert transactions_find()


def test_a_transaction_that_nobody_asks_about_is_found(monkeypatch):
    take_due = TransactionTable.take_due

    def all_but_one(self: TransactionTable, now_ms: int) -> Iterator[Transaction | None]:
        return (one for one in take_due(self, now_ms) if one is None or one.sequence % 8 != 3)

    monkeypatch.setattr(TransactionTable, "take_due", all_but_one)

    assert transactions_find()


def test_a_snapshot_that_claims_more_than_it_holds_is_found(monkeypatch):
    positions = DerivedTable.positions
    monkeypatch.setattr(
        DerivedTable,
        "positions",
        lambda self: {queue: at + 1 for queue, at in positions(self).items()},
    )

    assert transactions_find()


def test_a_lease_on_the_wall_clock_is_found(monkeypatch):
    begin = OpenChecks.__init__

    class Wall:
        def __init__(self, clock) -> None:
            self.wall_ms = self.monotonic_ms = clock.wall_ms

    monkeypatch.setattr(OpenChecks, "__init__", lambda self, clock: begin(self, Wall(clock)))

    assert transactions_find()


def test_a_check_that_rolls_back_what_is_held_is_found(monkeypatch):
    run_once = TransactionCoordinator.run_once

    async def tidy(self: TransactionCoordinator, now_ms: int) -> int:
        for transaction in list(self.table):
            if transaction.state is TxnState.HELD:
                await self.rollback(transaction.transaction_id)
        return await run_once(self, now_ms)

    monkeypatch.setattr(TransactionCoordinator, "run_once", tidy)

    assert "no order explains" in transactions_find()


def test_a_delayed_message_that_comes_early_is_found(monkeypatch):
    run_once = ScheduleService.run_once
    monkeypatch.setattr(
        ScheduleService, "run_once", lambda self, now_ms: run_once(self, now_ms + 15_000)
    )

    assert "early" in days_find()


def test_a_cancelled_message_that_comes_is_found(monkeypatch):
    monkeypatch.setattr(ScheduleService, "cancel", ScheduleService.get)

    assert "was cancelled, and came" in days_find()


def test_a_delivery_without_its_mark_is_found(monkeypatch):
    append = ScheduleLog.append

    async def in_two(self: ScheduleLog, messages: Sequence[Message], *rest: object) -> None:
        if messages:
            await self._store.append(messages)
        await append(self, messages, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ScheduleLog, "append", in_two)

    assert "twice" in days_find()


def test_an_occurrence_of_cron_without_its_mark_is_found(monkeypatch):
    monkeypatch.setattr(CronLog, "append", _only_messages)

    assert days_find()


async def _only_messages(self: CronLog, steps: Sequence) -> None:
    await self._store.append([message for step in steps for message in step.messages])
    for step in steps:
        self.table.settle(step.mark.schedule_id, step.mark.settled_ms)  # until the process ends


def test_without_a_mutant_the_same_campaigns_find_nothing():
    assert transactions_find(SEEDS[:1]) == ""
    assert days_find(DAYS[:2]) == ""
