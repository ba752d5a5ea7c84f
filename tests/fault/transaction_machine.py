"""C9: begins, decisions, checks, clock jumps, kills and power cuts in any order, beside a plain
description of a transaction.

The real coordinator, check sender and store run on a simulated disk. Decisions run against each
other and against sweeps, and the power may go meanwhile. What was answered must be explained by one
order of calls (support/linearizability.py), and after each start the log must hold the messages of
what was committed, each once, and nothing else.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from storage.errors import (
    CheckNotOpen,
    IdempotencyInProgress,
    TransactionConflict,
    UnknownTransaction,
)
from storage.local.options import FlushPolicy
from storage.message import Message, QueueId
from tests.support.check_pass import everything, transactions_by_check_pass
from tests.support.linearizability import FOR_EVER, Call, states_after
from tests.support.lives import BEGIN_MS
from tests.support.model import ModelMachine
from tests.support.simulation import End
from tests.support.transaction_spec import (
    BEGUN,
    DONE,
    REPLAYED,
    TAKEN,
    Decide,
    Look,
    Resume,
    State,
    Sweep,
    Unknown,
    answers,
)
from txn.begin import Outcome
from txn.check_sender import CheckSender
from txn.checkback_plan import CheckbackPolicy, HoldReason, OnExhausted
from txn.coordinator import Begin, TransactionCoordinator
from txn.open_checks import LeasedCheck, check_now
from txn.options import TransactionOptions
from txn.plain import Kept, PlainBegin
from txn.producer import Answered, Failed, Failure, Route
from txn.states import Resolver, TxnEvent, TxnState
from txn.transaction import Transaction

QUEUES = [QueueId("orders", 0), QueueId("orders", 1), QueueId("emails", 0)]
POLICIES = [
    CheckbackPolicy(first_after_ms=10_000_000),
    CheckbackPolicy(first_after_ms=10, interval_ms=10, max_answers=1, unreachable_limit_ms=1_000),
    CheckbackPolicy(
        first_after_ms=5, interval_ms=5, max_answers=2, on_exhausted=OnExhausted.ROLLBACK
    ),
    CheckbackPolicy(first_after_ms=5, interval_ms=10, max_answers=50, unreachable_limit_ms=60),
    CheckbackPolicy(
        first_after_ms=5,
        interval_ms=10,
        max_answers=50,
        unreachable_limit_ms=400,
        on_exhausted=OnExhausted.ROLLBACK,
    ),
]
POLLED, ASKED = "polled", "asked"
DAY_MS = 86_400_000
STATES = {TxnEvent.COMMIT: TxnState.COMMITTED, TxnEvent.ROLLBACK: TxnState.ROLLED_BACK}

MODES = ["commit", "rollback", "unknown", "unknown", "unreachable", "invalid", "gone"]

# these two end up held
policies = st.sampled_from(POLICIES) | st.sampled_from([POLICIES[1], POLICIES[3]])
which = st.integers(0, 60)
decisions = st.sampled_from([TxnEvent.COMMIT, TxnEvent.ROLLBACK])
words = st.sampled_from([TxnEvent.COMMIT, TxnEvent.ROLLBACK, TxnEvent.UNKNOWN, TxnEvent.UNKNOWN])
moments = st.sampled_from([0, 0, 1, 3, 5, 8])
acts = st.sampled_from(
    [
        "commit",
        "commit",
        "rollback",
        "rollback",
        "operator",
        "answer",
        "sweep",
        "resume",
        "begin",
        "begin again",
        "snapshot",
    ]
)


@dataclass(eq=False)
class Txn:
    """What was asked for, what was answered, and what the transaction may be by that."""

    transaction_id: str
    messages: list[Message]
    group: str
    policy: CheckbackPolicy
    key: str | None
    begun_at_ms: int
    is_sure: bool = False  # its begin was answered
    is_durable: bool = False
    states: set[State] = field(default_factory=lambda: {BEGUN})
    calls: list[Call] = field(default_factory=list)
    # the checks that were answered "unknown", whatever came of it
    unknowns: set[int] = field(default_factory=set)
    webhook_decided: bool = False


class Producer:
    """Producers that are asked by webhook: how they answer is what the machine has set last."""

    def __init__(self, machine: "TransactionMachine") -> None:
        self._machine = machine
        self.mode, self.latency_ms = "unreachable", 0
        self.is_gone = False
        self.is_on_trial = False  # what it says, decides nothing

    def route(self, group: str) -> Route | None:
        return Route("shop.example", 2) if group == ASKED and not self.is_gone else None

    async def disable(self, group: str, host: str) -> None:
        self.is_gone = True

    async def ask(self, group: str, check: LeasedCheck) -> Answered | Failed:
        await asyncio.sleep(self.latency_ms / 1000)
        match self.mode:
            case "commit" | "rollback" | "unknown" as word:
                if not self.is_on_trial:
                    self._machine.note_webhook(check, TxnEvent(word))
                return Answered(TxnEvent(word), recheck_after_ms=self.latency_ms or None)
            case "invalid":
                return Failed(Failure.INVALID, "302, not 200", retry_after_ms=20)
            case "gone":
                return Failed(Failure.INVALID, "410", is_gone=True)
            case _:
                return Failed(Failure.UNREACHABLE, "refused", blames_host=True)


class TransactionMachine(ModelMachine):
    # of what has happened: a campaign in which little does proves nothing
    tally: ClassVar[Counter[str]] = Counter()

    @initialize(
        flush=st.sampled_from(FlushPolicy),
        decided_kept=st.sampled_from([2, 500]),
        segment=st.sampled_from([16, 64]),
    )
    def begin_a_world(self, flush: FlushPolicy, decided_kept: int, segment: int) -> None:
        self.flush = flush
        self.transaction_options = TransactionOptions(
            decided_kept=decided_kept, dedup_window_ms=DAY_MS
        )
        self.txns: list[Txn] = []
        # ids of messages whose transaction was never answered and is not there
        self.gone: set[str] = set()
        self.taken: list[tuple[Txn, LeasedCheck]] = []  # checks that were once handed out
        self.leases: dict[str, int] = {}  # check id -> until when, on the monotonic clock
        self.serial = self.moment = 0
        self.first_wall_ms = self.last_wall_ms = BEGIN_MS
        self.producer = Producer(self)
        self.begin_lives(
            flush,
            index_file_entries=60,
            segment_bytes=segment << 10,
            queue_file_entries=20,
            prepare_ahead_bytes=8_192,
            queue_flush_interval_ms=20,
            snapshot_interval_ms=40,
        )

    async def start(self) -> None:
        self.leases.clear()
        await self.store.create_topic("orders", queue_count=2)
        await self.store.create_topic("emails", queue_count=1)
        self.coordinator = TransactionCoordinator(
            self.store, self.world.clock, self.world.identifiers, self.transaction_options
        )
        await self.coordinator.start()
        self.started_ms = self.now_ms
        self.sender = CheckSender(
            self.coordinator, self.producer, self.world.clock, random=self.world.randomness.random
        )

    async def close(self) -> None:
        await self.sender.stop()
        await self.coordinator.drain()
        await self.coordinator.save_snapshot()
        await self.store.aclose()

    # ----------------------------------------------------------------------------------------------
    # one after another

    @rule(
        count=st.integers(1, 3),
        policy=policies,
        group=st.sampled_from([POLLED, ASKED]),
        keyed=st.booleans(),
    )
    def begin(self, count: int, policy: CheckbackPolicy, group: str, keyed: bool) -> None:
        txn = self._new(count, policy, group, keyed)
        self.call(self._begin(txn))
        assert txn.is_sure
        self._look([txn])

    @rule(at=which)
    @precondition(lambda self: any(txn.key for txn in self.txns))
    def begin_again(self, at: int) -> None:
        """Its key finds the transaction while it counts, whatever has become of it; then it is
        free.
        """
        keyed = {txn.key: txn for txn in self.txns if txn.key is not None}
        txn = list(keyed.values())[at % len(keyed)]
        counts = self.now_ms - self._known(txn).prepared_at_ms <= DAY_MS
        again = self._new(1, POLICIES[0], POLLED, keyed=False)
        again.key = txn.key
        replayed = self.call(self._begin(again))
        assert replayed is counts, (
            f"{txn.transaction_id} was begun again as {replayed=} while its key {counts=}"
        )
        if replayed:
            # With a clock that was set back, an older one of this key may count again, too.
            assert again.transaction_id == txn.transaction_id or self.now_ms < self.last_wall_ms
            self._forget(again)

    @rule(at=which, decision=decisions, by=st.sampled_from([Resolver.PRODUCER, Resolver.OPERATOR]))
    @precondition(lambda self: self.txns)
    def decide(self, at: int, decision: TxnEvent, by: Resolver) -> None:
        txn = self._pick(at)
        call = self.call(self._decide(txn, decision, by))
        assert call.answer is not None
        self._look([txn])

    @rule(policy=policies, decision=decisions, after_ms=st.sampled_from([0, 1, 5]))
    def begin_and_decide(self, policy: CheckbackPolicy, decision: TxnEvent, after_ms: int) -> None:
        """Begin with one message and decide soon, as most producers do."""
        txn = self._new(1, policy, POLLED, keyed=False)

        async def both() -> Call:
            await self._begin(txn)
            await asyncio.sleep(after_ms / 1000)
            return await self._decide(txn, decision, Resolver.PRODUCER)

        assert self.call(both()).answer is not None
        self._look([txn])

    @rule(at=which)
    @precondition(lambda self: self.txns)
    def resume(self, at: int) -> None:
        txn = self._pick(at)
        self.call(self._resume(txn))
        self._look([txn])

    @rule(
        after_ms=st.sampled_from([0, 12, 40]),
        word=words,
        lease_ms=st.sampled_from([10, 200]),
        share=st.sampled_from([0, 1, 100]),
    )
    def come_for_checks(self, after_ms: int, word: TxnEvent, lease_ms: int, share: int) -> None:
        """Every undecided transaction whose check is due is handed out, or somebody else has it."""
        self.sleep(after_ms)
        now_ms = self.world.clock.monotonic_ms()

        async def poll() -> list[LeasedCheck]:
            async with self._sweeping():
                return await self.coordinator.receive_checks(
                    POLLED, max_checks=1_000, lease_ms=lease_ms, wait_ms=0
                )

        checks = self.call(poll())
        by_id = {txn.transaction_id: txn for txn in self.txns}
        for check in checks:
            self.taken.append((by_id[check.transaction.transaction_id], check))
            assert self.leases.get(check.check_id, 0) <= now_ms, (
                f"{check.check_id} is leased to two at once"
            )
            self.leases[check.check_id] = now_ms + lease_ms
        out = {check_id for check_id, until_ms in self.leases.items() if until_ms > now_ms}
        for transaction in self.coordinator.table:
            if transaction.producer_group == POLLED and transaction.is_checking:
                open_check = check_now(transaction, 0).check_id
                assert open_check in out, f"{open_check} is due, and nobody gets it"
        for check in checks[:share]:
            self.call(self._answer(by_id[check.transaction.transaction_id], check, word))
        self._look(self.txns)

    @rule(at=which, word=words)
    @precondition(lambda self: self.taken)
    def answer_a_check_of_some_time_ago(self, at: int, word: TxnEvent) -> None:
        txn, check = self.taken[-1 - at % len(self.taken)]
        self.call(self._answer(txn, check, word))
        self._look([txn])

    @rule(
        mode=st.sampled_from(MODES),
        latency_ms=st.sampled_from([0, 3, 200]),
        wait_ms=st.sampled_from([0, 5, 40, 250]),
    )
    def send_checks(self, mode: str, latency_ms: int, wait_ms: int) -> None:
        """Producers answer like this from now on."""
        self.producer.mode, self.producer.latency_ms, self.producer.is_gone = (
            mode,
            latency_ms,
            False,
        )

        async def send() -> None:
            async with self._sweeping():
                await self.coordinator.run_once(self.now_ms)
                await self.sender.run_once()
                await asyncio.sleep(wait_ms / 1000)

        self.call(send())
        self._look(self.txns)

    @rule(at=which, dry_run=st.booleans())
    @precondition(lambda self: any(txn.group == ASKED for txn in self.txns))
    def ask_out_of_turn(self, at: int, dry_run: bool) -> None:
        asked = [txn for txn in self.txns if txn.group == ASKED]
        txn = asked[at % len(asked)]
        check = check_now(self._known(txn), self.now_ms)

        async def ask() -> None:
            try:
                await self.sender.ask_now(check, dry_run=dry_run)
            except (CheckNotOpen, TransactionConflict):
                assert not dry_run

        # Another check under way would be taken for this one.
        self.producer.is_on_trial = dry_run = dry_run and not self.sender.under_way
        self.call(ask())
        self.producer.is_on_trial = False
        self._look([txn])

    # ----------------------------------------------------------------------------------------------
    # time

    @rule(
        ms=st.sampled_from([-30 * DAY_MS, -DAY_MS, -1_000, -1, 1, 1_000, DAY_MS + 1, 30 * DAY_MS])
    )
    def the_wall_clock_jumps(self, ms: int) -> None:
        if 0 < self.now_ms + ms < 4_000_000_000_000:
            self.world.clock.jump(ms)
            self._note_wall()

    @rule(after_ms=st.sampled_from([0, 1, 7, 10, 35, 70, 420, 1_100]))
    def sweep(self, after_ms: int) -> None:
        """Nobody is left unasked: a check is open, or is not due yet, or nobody is asked
        any more.
        """
        self.sleep(after_ms)
        now_ms = self.now_ms

        async def once() -> None:
            async with self._sweeping():
                await self.coordinator.run_once(now_ms)

        self.call(once())
        for transaction in self.coordinator.table:
            if transaction.state is TxnState.PREPARED:
                policy, asked_at_ms = transaction.policy, transaction.asked_at_ms
                assert transaction.answers < policy.max_answers
                if asked_at_ms is None:
                    assert now_ms < transaction.next_check_at_ms, (
                        f"{transaction.transaction_id} is due and was not asked"
                    )
                else:
                    give_up_ms = asked_at_ms + policy.unreachable_limit_ms
                    # the service was down: that is not the producer's silence
                    if asked_at_ms < self.started_ms:
                        give_up_ms = max(give_up_ms, self.started_ms + policy.interval_ms)
                    assert now_ms < give_up_ms
        self._look(self.txns)

    # -------------------------------------------------------------------------------------------
    # beside each other, ends

    @rule(
        steps=st.lists(st.tuples(moments, acts, which), min_size=2, max_size=6),
        focus=which,
        cut_after=st.none() | st.none() | st.integers(0, 25),
    )
    def storm(self, steps: list[tuple[int, str, int]], focus: int, cut_after: int | None) -> None:
        """All at once, most of it about one transaction; perhaps the power goes in the middle."""
        disk = self.world.disk
        if cut_after is not None:
            disk.cut_after = disk.operations + cut_after
        known = list(self.txns)
        middle = self._pick(focus) if known else None

        async def one(wait_ms: int, act: str, at: int) -> None:
            await asyncio.sleep(wait_ms / 1000)
            await self._act(act, middle if at < 45 or not known else known[at % len(known)])

        async def all_at_once() -> None:
            await asyncio.gather(*[one(*step) for step in steps])

        if self.world.run(all_at_once()):
            disk.cut_after = None
            self._look(self.txns)
        else:
            self.end_this_life(End.CUT)

    @rule()
    def keep_a_snapshot(self) -> None:
        self.call(self.coordinator.save_snapshot())

    @rule(end=st.sampled_from(End))
    def end_this_life(self, end: End) -> None:
        if end is End.CLOSE:
            self.call(self.close())
            end = End.KILL  # of a service that has nothing left to do
        self._note_wall()
        is_quiet = not self.world.disk.is_off and not self.sender.under_way
        before = (
            {
                transaction.transaction_id: _facts(transaction)
                for transaction in self.coordinator.table
            }
            if is_quiet
            else {}
        )
        is_cut = end is End.CUT
        self.tally["power cuts" if is_cut else "kills"] += 1
        self.tally.update([str(state) for txn in self.txns for state, _ in txn.states])
        now = self._next_moment()
        for txn in self.txns:
            txn.webhook_decided = False
            for call in txn.calls:
                call.ended = min(call.ended, now)
        self.restart(end, down_ms=0)
        self._verify_after_a_start(before, is_cut=is_cut)

    # ----------------------------------------------------------------------------------------------
    # the acts

    async def _act(self, act: str, txn: Txn | None) -> None:
        if act == "begin" or txn is None:
            new = self._new(
                1 + self.serial % 3,
                POLICIES[self.serial % len(POLICIES)],
                POLLED,
                keyed=bool(self.serial % 2),
            )
            await self._begin(new)
            return
        match act:
            case "commit" | "rollback":
                await self._decide(txn, TxnEvent(act), Resolver.PRODUCER)
            case "operator":
                await self._decide(txn, TxnEvent.COMMIT, Resolver.OPERATOR)
            case "answer":
                word = list(TxnEvent)[self.serial % 3]
                check = next((check for taken, check in reversed(self.taken) if taken is txn), None)
                if check is not None:
                    await self._answer(txn, check, word)
            case "resume":
                await self._resume(txn)
            case "begin again":
                await self._begin_beside(txn)
            case "snapshot":
                await self.coordinator.save_snapshot()
            case _:
                async with self._sweeping():
                    await self.coordinator.run_once(self.now_ms)

    def _new(self, count: int, policy: CheckbackPolicy, group: str, keyed: bool) -> Txn:
        self.serial += 1
        given = [
            Message(
                queue=QUEUES[(self.serial + number) % 3],
                message_id=f"msg_{self.serial}_{number}",
                body=bytes([number]) * (7 * self.serial % 300),
                born_at_ms=self.now_ms,
            )
            for number in range(count)
        ]
        # without one it can be begun as a plain one
        key = f"key-{self.serial}" if keyed and count > 1 else None
        txn = Txn(f"txn_{self.serial}", given, group, policy, key, self.now_ms)
        self.txns.append(txn)
        return txn

    async def _begin(self, txn: Txn) -> bool:
        if len(txn.messages) == 1 and txn.key is None:
            await self._begin_plainly(txn)
            return False
        request = Begin(
            txn.messages,
            txn.group,
            txn.policy,
            txn.transaction_id,
            None,
            txn.key,
            "print" if txn.key else None,
        )
        outcome = await self.coordinator.begin(request)
        txn.is_sure = True
        txn.transaction_id = outcome.transaction.transaction_id
        return outcome.replayed

    async def _begin_plainly(self, txn: Txn) -> None:
        (message,) = txn.messages
        asked = PlainBegin(
            txn.transaction_id,
            txn.group,
            message.queue,
            message.message_id,
            "",
            None,
            message.body,
            0,
        )
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.coordinator.plain.begin(
            [asked],
            txn.policy,
            done=lambda _: begun.set_result(None),
            failed=lambda error: begun.set_exception(error),
        )
        await begun
        txn.is_sure = True
        self.tally["begun plainly"] += 1

    async def _begin_beside(self, txn: Txn) -> None:
        """A client that has not heard of its begin repeats it."""
        if (
            txn.key is None
            or not txn.is_sure
            or txn is not [one for one in self.txns if one.key == txn.key][-1]
        ):
            return
        if self.now_ms - txn.begun_at_ms > DAY_MS // 2 or self.now_ms < txn.begun_at_ms:
            return
        request = Begin(txn.messages, txn.group, txn.policy, None, None, txn.key, "print")
        try:
            outcome = await self.coordinator.begin(request)
        except IdempotencyInProgress:
            return  # another one asks the log at this moment
        assert outcome.replayed
        assert (
            outcome.transaction.transaction_id == txn.transaction_id
            or self.now_ms < self.last_wall_ms
        )

    async def _decide(self, txn: Txn, decision: TxnEvent, by: Resolver) -> Call:
        plain = self.coordinator.plain
        kept = plain.take(txn.transaction_id) if by is Resolver.PRODUCER else None
        if kept is not None:
            return await self._asked(
                txn, Decide(STATES[decision], by), self._decide_plainly(kept, STATES[decision])
            )
        decide = (
            self.coordinator.commit if decision is TxnEvent.COMMIT else self.coordinator.rollback
        )
        return await self._asked(
            txn, Decide(STATES[decision], by), decide(txn.transaction_id, by=by)
        )

    async def _decide_plainly(self, kept: Kept, state: TxnState) -> Outcome:
        decided: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.coordinator.plain.decide(
            [kept],
            state,
            done=lambda found: decided.set_result(Outcome(found.transactions[0], replayed=False)),
            failed=lambda error: decided.set_exception(error),
        )
        self.tally["decided plainly"] += 1
        return await decided

    async def _answer(self, txn: Txn, check: LeasedCheck, word: TxnEvent) -> None:
        if word is TxnEvent.UNKNOWN:
            txn.unknowns.add(_number(check))
        what = _meant_by(txn, word)
        answer = self.coordinator.answer_check(txn.group, check.check_id, word)
        call = await self._asked(
            txn, what, answer, done=TAKEN if word is TxnEvent.UNKNOWN else None
        )
        if call.answer is TAKEN:
            txn.is_durable = True

    async def _resume(self, txn: Txn) -> None:
        await self._asked(txn, Resume(), self.coordinator.resume(txn.transaction_id), done=TAKEN)

    async def _asked(
        self, txn: Txn, what: Any, asking: Awaitable[Any], done: str | None = None
    ) -> Call:
        call = Call(what, self._next_moment())
        txn.calls.append(call)
        try:
            outcome = await asking
        except TransactionConflict as conflict:
            call.answer = (TxnState(conflict.state), Resolver(conflict.resolved_by))
        except UnknownTransaction:
            assert not txn.is_sure, f"{txn.transaction_id} was begun and is not known"
        except CheckNotOpen:
            assert not txn.is_sure or self._is_not_due(txn), (
                f"a check of {txn.transaction_id} was asked and is not known"
            )
        else:
            if done is None:
                replayed = getattr(outcome, "replayed", None)
                # Who answers a check is not told whether somebody else was first.
                done = {True: REPLAYED, False: DONE, None: None}[replayed]
            call.answer = done
        if call.answer is not None or not self.world.disk.is_off:
            call.ended = self._next_moment()
        return call

    def _is_not_due(self, txn: Txn) -> bool:
        """Was its check handed out by a clock that was ahead, and nobody knows it any more, after a
        crash?
        """
        known = self.coordinator.table.get(txn.transaction_id)
        if known is None:
            return True  # decided, and forgotten
        until_ms = self.now_ms if known.resolved_at_ms is None else known.resolved_at_ms
        return known.asked_at_ms is None and known.next_check_at_ms > until_ms

    @asynccontextmanager
    async def _sweeping(self) -> AsyncIterator[None]:
        with self._open_sweeps() as calls:
            yield
        for call in calls:
            call.ended = self._next_moment()

    @contextmanager
    def _open_sweeps(self) -> Iterator[list[Call]]:
        calls = []
        for txn in self.txns:
            if any(not state[0].is_decided for state in txn.states):
                calls.append(Call(Sweep(txn.policy.on_exhausted), self._next_moment()))
                txn.calls.append(calls[-1])
        yield calls

    def note_webhook(self, check: LeasedCheck, word: TxnEvent) -> None:
        """A producer has said this about a check: the service may act on it from now on."""
        txn = next(
            txn for txn in self.txns if txn.transaction_id == check.transaction.transaction_id
        )
        if word is TxnEvent.UNKNOWN:
            txn.unknowns.add(_number(check))
        txn.calls.append(Call(_meant_by(txn, word), self._next_moment()))
        txn.webhook_decided |= word is not TxnEvent.UNKNOWN

    # ----------------------------------------------------------------------------------------------
    # is it all true?

    def _look(self, txns: list[Txn]) -> None:
        self._note_wall()
        is_quiet = not self.sender.under_way
        for txn in list(txns):
            known = self._known(txn)
            if txn.calls or known.state is not BEGUN[0]:
                now = self._next_moment()
                if is_quiet:
                    for call in txn.calls:
                        call.ended = min(call.ended, now)
                txn.calls.append(
                    Call(Look(), now, self._next_moment(), (known.state, known.resolved_by))
                )
                after = states_after(txn.calls, txn.states, answers)
                assert after, (
                    f"no order explains what was answered about {txn.transaction_id}, "
                    f"{txn.states}: {txn.calls}"
                )
                txn.states = after
                txn.calls = [
                    call for call in txn.calls if call.answer is None and call.ended == FOR_EVER
                ]
            txn.is_durable |= known.state is not TxnState.PREPARED
            if is_quiet and txn.webhook_decided:
                assert known.state.is_decided, (
                    f"{txn.transaction_id} was decided by webhook, it is {known.state}"
                )
            self._expect_checks(txn, known)

    def _expect_checks(self, txn: Txn, known: Transaction) -> None:
        """Only what was answered counts, and only a used-up budget or clock ends the checks."""
        counted = set(range(1, known.checks_answered + 1))
        assert counted <= txn.unknowns, (
            f"{txn.transaction_id} counts {counted}, answered were {txn.unknowns}"
        )
        ended_by = known.hold_reason if known.state is TxnState.HELD else known.reason
        if ended_by == HoldReason.ANSWERS_EXHAUSTED:
            assert len(txn.unknowns) >= txn.policy.max_answers
        elif ended_by == HoldReason.UNREACHABLE:
            assert self.last_wall_ms - self.first_wall_ms >= txn.policy.unreachable_limit_ms
        else:
            assert known.state is not TxnState.HELD
            assert known.resolved_by is not Resolver.POLICY

    def _verify_after_a_start(self, before: dict[str, tuple[Any, ...]], *, is_cut: bool) -> None:
        for txn in list(self.txns):
            transaction = self._find(txn)
            if transaction is None:
                may_be_lost = not txn.is_sure or (
                    is_cut and self.flush is FlushPolicy.INTERVAL and not txn.is_durable
                )
                assert may_be_lost, f"{txn.transaction_id} was begun and is not known any more"
                self._forget(txn)
                continue
            txn.is_sure = txn.is_durable = True
            kept = before.get(txn.transaction_id)
            assert kept is None or _facts(transaction) == kept
        self._look(self.txns)
        committed = [
            txn for txn in self.txns if any(state[0] is TxnState.COMMITTED for state in txn.states)
        ]
        promised = {
            message.message_id: (message.queue, message.body)
            for txn in committed
            for message in txn.messages
        }
        assert self.call(self._read_everything()) == promised
        by_pass = self.call(transactions_by_check_pass(self.store))
        assert {key for key, op in by_pass.items() if op is None} == {
            transaction.transaction_id
            for transaction in self.coordinator.table
            if not transaction.state.is_decided
        }
        assert by_pass.keys() == {txn.transaction_id for txn in self.txns}

    async def _read_everything(self) -> dict[str, tuple[QueueId, bytes]]:
        found: dict[str, tuple[QueueId, bytes]] = {}
        for queue in QUEUES:
            at = 0
            async for message in everything(self.store, queue):
                assert message.queue_offset == at
                assert message.message_id not in found, f"{message.message_id} is there twice"
                found[message.message_id] = (message.queue, message.body)
                at += 1
        return found

    # ----------------------------------------------------------------------------------------------
    # helpers

    def _pick(self, at: int) -> Txn:
        """Mostly one that is undecided."""
        undecided = [
            txn for txn in self.txns if any(not state[0].is_decided for state in txn.states)
        ]
        return (
            undecided[at % len(undecided)]
            if undecided and at % 4
            else self.txns[at % len(self.txns)]
        )

    def _known(self, txn: Txn) -> Transaction:
        transaction = self._find(txn)
        assert transaction is not None, f"{txn.transaction_id} is not known"
        return transaction

    def _find(self, txn: Txn) -> Transaction | None:
        known = self.coordinator.table.get(txn.transaction_id)
        if known is not None:
            return known
        try:
            return self.call(self.coordinator.get(txn.transaction_id))
        except UnknownTransaction:
            return None

    def _forget(self, txn: Txn) -> None:
        self.txns.remove(txn)
        self.taken = [(taken, check) for taken, check in self.taken if taken is not txn]

    def _next_moment(self) -> int:
        self.moment += 1
        return self.moment

    def _note_wall(self) -> None:
        now_ms = self.now_ms
        self.first_wall_ms, self.last_wall_ms = (
            min(self.first_wall_ms, now_ms),
            max(self.last_wall_ms, now_ms),
        )


def _number(check: LeasedCheck) -> int:
    return int(check.check_id.split("_")[1])


def _meant_by(txn: Txn, word: TxnEvent) -> Any:
    return (
        Unknown(txn.policy.on_exhausted)
        if word is TxnEvent.UNKNOWN
        else Decide(STATES[word], Resolver.CHECK)
    )


def _facts(transaction: Transaction) -> tuple[Any, ...]:
    """What a crash between two requests may not change.

    Failed tries are no part of it: they are not synced.
    """
    places = [
        (message.message_id, message.queue, message.half_offset) for message in transaction.messages
    ]
    fields = (
        "transaction_id producer_group policy prepared_at_ms next_check_at_ms idempotency_key "
        "fingerprint state answers "
        "checks_answered last_answer hold_reason was_held resolved_by resolved_at_ms reason"
    )
    return (*places, *[getattr(transaction, name) for name in fields.split()])
