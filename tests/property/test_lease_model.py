"""Any sequence of sends, receives, acks, refusals, releases, lapses, resets, damage, kills and power
cuts keeps what a plain model says.

What is asked of every step: a message is with one consumer at a time; what was acknowledged never
comes again, nor what was withdrawn; what was not comes again until it is; no count of attempts goes
back; the same attempt again is given the same; in an ordered group no key is overtaken, and one
that is held keeps no other from coming; the committed offset is the settled prefix; a message whose
record is damaged becomes a dead letter, once. At the end everything that is neither done nor dead
is received, once each. tests/fault/test_lease_mutants.py plants mistakes that it must find.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from delivery.leases.retry_message import is_stub
from delivery.receive.receive import LeasedMessage
from storage.files.simulated import SimulatedDisk
from storage.local.options import FlushPolicy
from storage.message import QueueId
from tests.fault.campaign_size import sized
from tests.support.delivery import GROUP, House, rules, spoil
from tests.support.model import ModelMachine, model_test
from tests.support.simulation import End

QUEUES = [QueueId("orders", 0), QueueId("orders", 1)]
# that a lease may still hold a message after its end: the wheel's steps, and the time that a call
# takes
LATE_MS = 40
LONG_MS = 20_000
indexes = st.integers(0, 100)


class Item:
    """One message as its consumers see it.

    What a crash left unknown has a range instead of a number.
    """

    def __init__(self, name: str, queue: QueueId, key: str | None) -> None:
        self.name = name
        self.queue = queue
        self.key = key
        self.attempts = 0  # answered hand-outs
        self.more_attempts = 0  # that may have been made, unanswered
        self.is_done = False
        self.may_be_done = False
        self.may_be_dead = False
        self.is_cancelled_request = False
        self.is_damaged = False
        self.stubs_allowed = 0  # dead letters that may stand for it
        self.may_be_put_off = False  # it may lie elsewhere, to come back as a retry
        self.held_until_ms = 0  # nobody is given it before
        self.handle: LeasedMessage | None = None  # of the last hand-out

    @property
    def order_key(self) -> tuple[QueueId, str | None]:
        return self.queue, self.key


class LeaseMachine(ModelMachine):
    """Drives the groups over the embedded engine beside a dict of items."""

    @initialize(
        flush=st.sampled_from(FlushPolicy),
        ordered=st.booleans(),
        max_attempts=st.sampled_from([1, 3, 1_000]),
        lease_ms=st.sampled_from([300, 2_000]),
    )
    def begin(self, flush: FlushPolicy, ordered: bool, max_attempts: int, lease_ms: int) -> None:
        self.rules = rules(
            ordered=ordered, max_attempts=max_attempts, lease_ms=lease_ms, backoff_ms=(200, 1_000)
        )
        self.items: dict[str, Item] = {}
        self.stale: list[LeasedMessage] = []
        self.receives = 0
        self.begin_lives(
            flush,
            segment_bytes=131_072,
            flush_interval_ms=50,
            queue_flush_interval_ms=100,
            snapshot_interval_ms=300,
        )

    async def start(self) -> None:
        self.house = House(self.world, self.store, self.rules)
        self.house.cancelled_requests |= {
            item.name for item in self.items.values() if item.is_cancelled_request
        }
        await self.house.start(queues=len(QUEUES))

    async def close(self) -> None:
        await self.house.close()

    # ----------------------------------------------------------------------------------------------
    # rules

    @rule(
        count=st.integers(1, 4),
        queue=st.sampled_from(QUEUES),
        key=st.sampled_from(["a", "b", None]),
        receives=st.sampled_from([0, 1, 1, 100]),
    )
    def send_and_receive(self, count: int, queue: QueueId, key: str | None, receives: int) -> None:
        names = [f"m{len(self.items) + number:03}" for number in range(count)]
        self.call(self.house.send(*names, queue=queue, key=key))
        self.items |= {name: Item(name, queue, key) for name in names}
        if receives:
            self.receive(receives)

    @rule(max_messages=st.sampled_from([1, 2, 100]))
    def receive(self, max_messages: int) -> None:
        begun_ms = self.now_ms
        received = self.call(self.house.receive(max_messages))
        self._note_received(received, begun_ms)
        if len(received) < max_messages:
            self._check_none_is_left(begun_ms)

    @rule(max_messages=st.sampled_from([1, 3]), kills=st.booleans())
    def receive_and_repeat_the_attempt(self, max_messages: int, kills: bool) -> None:
        """Whoever lost the answer is given the same messages under the same leases, across a kill
        too.
        """
        self.receives += 1
        how = {"attempt_id": f"try {self.receives}"}
        begun_ms = self.now_ms
        received = self.call(self.house.receive(max_messages, **how))
        self._note_received(received, begun_ms)
        if kills:
            self.restart()
        if received and self.now_ms + LATE_MS < received[0].expires_at_ms:
            again = self.call(self.house.receive(max_messages, **how))
            assert [one.handle for one in again] == [one.handle for one in received]

    @rule(at=indexes)
    def withdraw(self, at: int) -> None:
        """Whoever has it keeps it; nobody is given it any more."""
        items = [item for item in self.items.values() if not item.is_done]
        if items:
            item = items[at % len(items)]
            item.is_cancelled_request = True
            self.house.cancelled_requests.add(item.name)

    @rule(at=indexes, count=st.integers(1, 3))
    def ack(self, at: int, count: int) -> None:
        held = self._held(at, count)
        for item, accepted in zip(
            held, self.call(self.house.ack(*[self._handle(item) for item in held])), strict=True
        ):
            assert accepted, f"{item.name} was held and could not be acknowledged"
            self._note_acknowledged(item)

    @rule(at=indexes, delay_ms=st.sampled_from([None, 0, 50, 1_500]))
    def nack(self, at: int, delay_ms: int | None) -> None:
        for item in self._held(at, 1):
            assert self.call(self.house.nack(self._handle(item), delay_ms=delay_ms)) == [True]
            self._lapse(item, 0)
            item.may_be_put_off |= not self.rules.ordered
            wait_ms = (
                self.rules.backoff_ms[min(item.attempts, 2) - 1] if delay_ms is None else delay_ms
            )
            if not item.is_done:
                item.held_until_ms = self.now_ms + max(0, wait_ms - 10)

    @rule(at=indexes, count=st.integers(1, 3), delay_ms=st.sampled_from([None, 0, 50, 1_500]))
    def release(self, at: int, count: int, delay_ms: int | None) -> None:
        """Given back unprocessed, messages come again for the same attempt, their last one too."""
        held = self._held(at, count)
        given = [self._handle(item) for item in held]
        assert self.call(self.house.release(*given, delay_ms=delay_ms)) == [True] * len(held)
        for item in held:
            item.attempts -= 1
            self._lapse(item, self.now_ms + max(0, (delay_ms or 0) - 10))
            item.may_be_put_off |= bool(delay_ms) and not self.rules.ordered

    @rule(at=indexes)
    def give_up(self, at: int) -> None:
        for item in self._held(at, 1):
            assert self.call(self.house.give_up(self._handle(item), reason="bad")) == [True]
            item.is_done = item.may_be_dead = True

    @rule(at=indexes, lease_ms=st.sampled_from([100, 5_000]))
    def extend(self, at: int, lease_ms: int) -> None:
        for item in self._held(at, 1):
            until_ms = self.call(self.house.extend(self._handle(item), lease_ms))
            assert until_ms is not None
            item.held_until_ms = until_ms

    @rule(at=indexes)
    def hold_for_long(self, at: int) -> None:
        """For longer than anything else takes: its key stands still, and no other does."""
        self.extend(at, LONG_MS)

    @rule(at=indexes)
    def settle_with_a_handle_of_before(self, at: int) -> None:
        """Of a message that another holds now, where there is one: that is the lease it
        could end.
        """
        held = {self._handle(item).message.message_id for item in self._held(0, len(self.items))}
        stale = [one for one in self.stale if one.message.message_id in held] or self.stale
        if stale:
            handle = stale[at % len(stale)]
            assert self.call(self.house.ack(handle)) == [False]
            assert self.call(self.house.nack(handle)) == [False]
            assert self.call(self.house.extend(handle, 1_000)) is None

    @rule(at=indexes)
    def take_over_and_settle_with_the_handle_of_before(self, at: int) -> None:
        self.nack(at, 0)
        self.pass_time(1_000)
        self.receive(100)
        self.settle_with_a_handle_of_before(at)

    @rule(ms=st.sampled_from([10, 150, 1_000, 6_000]))
    def pass_time(self, ms: int) -> None:
        self.call(self.house.pass_time(ms))

    @rule(queue=st.sampled_from(QUEUES), to_end=st.booleans())
    def reset(self, queue: QueueId, to_end: bool) -> None:
        """To its beginning, where everything comes again, or its end, where nothing does.

        In the other all goes on.
        """
        self.receive(100)
        refused = [item for item in self._held(0, len(self.items)) if item.queue != queue][::2]
        self.call(self.house.nack(*[self._handle(item) for item in refused], delay_ms=50))
        for item in refused:
            self._lapse(item, 0)
            item.may_be_put_off |= not self.rules.ordered
        offset = self.call(self.store.offsets(queue)).end if to_end else 0
        self.call(self.house.delivery.reset(GROUP, {queue: offset}))
        self._begin_anew(
            [item for item in self.items.values() if item.queue == queue], is_done=to_end
        )

    @rule(queue=st.sampled_from(QUEUES), at=indexes)
    def acknowledge_while_a_reset_is_under_way(self, queue: QueueId, at: int) -> None:
        """An acknowledgement behind the reset in the log settles nothing in the queue that was
        reset.
        """
        held = self._held(at, 3)

        async def both() -> list[bool]:
            reset = asyncio.ensure_future(self.house.delivery.reset(GROUP, {queue: 0}))
            await asyncio.sleep(0)
            accepted = await self.house.ack(*[self._handle(item) for item in held])
            await reset
            return accepted

        for item, accepted in zip(held, self.call(both()), strict=True):
            assert accepted or item.queue == queue
            if accepted:
                self._note_acknowledged(item)
        self._begin_anew(
            [item for item in self.items.values() if item.queue == queue], is_done=False
        )

    @rule(queue=st.sampled_from(QUEUES), to_end=st.booleans())
    def set_position(self, queue: QueueId, to_end: bool) -> None:
        """The leases of the queue end.

        It ends no retries: where there may be some, messages come twice: not asked.
        """
        mine = [item for item in self.items.values() if item.queue == queue]
        if not any(item.may_be_put_off for item in mine):
            offset = self.call(self.store.offsets(queue)).end if to_end else 0
            self.call(self.house.delivery.set_positions(GROUP, {queue: offset}))
            assert self.call(self.house.position(queue)) == offset
            self._begin_anew(mine, is_done=to_end)

    @rule()
    def delete_the_group_and_make_it_again(self) -> None:
        refused = self._held(0, len(self.items))
        self.call(self.house.nack(*[self._handle(item) for item in refused], delay_ms=50))
        self.call(self.house.delivery.delete(GROUP))
        self.call(self.house.delivery.begin(GROUP, self.rules))
        self._begin_anew(list(self.items.values()), is_done=False)

    def _begin_anew(self, items: list[Item], *, is_done: bool) -> None:
        dead = {one.message_id for one in self.call(self.house.dead_letters())}
        for item in items:
            if item.handle is not None:
                self.stale.append(item.handle)
            item.handle = None
            item.attempts = item.more_attempts = item.held_until_ms = 0
            item.is_done, item.may_be_done, item.may_be_put_off = is_done, False, False
            item.may_be_dead |= item.name in dead
            item.stubs_allowed += item.is_damaged

    @rule()
    def keep_a_snapshot(self) -> None:
        self.call(self.house.delivery.save_snapshot())

    @rule(at=indexes)
    def damage_a_record(self, at: int) -> None:
        """Between an orderly end and a start, which looks at nothing then.

        A retry of the message may lie elsewhere, whole.
        """
        sound = [item for item in self.items.values() if not item.is_damaged and not item.is_done]
        if not sound:
            return
        item = sound[at % len(sound)]
        (stored,) = self.call(
            self.store.read(item.queue, self._offset_of(item), max_messages=1, max_bytes=1)
        )
        item.is_damaged, item.stubs_allowed = True, 1

        def damage(disk: SimulatedDisk) -> None:
            spoil(disk, stored.log_offset, segment_bytes=self.options.segment_bytes)

        self.restart(End.CLOSE, between=damage)

    @rule(closes=st.booleans())
    def kill(self, closes: bool) -> None:
        self.restart(End.CLOSE if closes else End.KILL)

    @rule()
    def cut_the_power(self) -> None:
        """It may take grants and extensions that nothing later made durable; their handles are
        worth nothing then.
        """
        self.restart(End.CUT)
        for item in self.items.values():
            if item.handle is not None and not item.is_done:
                item.attempts -= 1  # the same attempt may be made again
                item.more_attempts += 1
                item.handle = None
                item.held_until_ms = 0

    @rule(
        verb=st.sampled_from(["receive", "ack", "nack", "release", "give_up"]),
        at=indexes,
        after_ms=st.integers(0, 8),
    )
    def kill_in_the_middle(self, verb: str, at: int, after_ms: int) -> None:
        held = self._held(at, 2)
        given = [self._handle(item) for item in held]
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "receive": lambda: self.house.receive(2),
            "ack": lambda: self.house.ack(*given),
            "nack": lambda: self.house.nack(*given, delay_ms=100),
            "release": lambda: self.house.release(*given, delay_ms=100),
            "give_up": lambda: self.house.give_up(*given),
        }
        self.call_for(after_ms, calls[verb]())
        self.restart()
        for item in self.items.values() if verb == "receive" else held:
            if verb == "receive" and not item.is_done:
                item.more_attempts += 1
                item.may_be_dead |= item.attempts + item.more_attempts >= self.rules.max_attempts
            elif verb != "receive":
                item.may_be_done |= verb == "ack"
                item.may_be_put_off |= verb in ("nack", "release") and not self.rules.ordered
                item.may_be_dead |= verb == "give_up" or item.attempts >= self.rules.max_attempts
                if verb == "release":  # it counts unless the log has the release
                    item.attempts -= 1
                    item.more_attempts += 1
                self._forget(item)

    # ----------------------------------------------------------------------------------------------
    # invariants

    @invariant()
    def what_is_dead_may_be(self) -> None:
        stubs = Counter(
            one.message_id for one in self.call(self.house.dead_letters()) if is_stub(one)
        )
        by_stub = {self._stub_of(item): item for item in self.items.values() if item.is_damaged}
        for stub, count in stubs.items():
            assert count <= by_stub[stub].stubs_allowed, (
                f"{stub} became a dead letter {count} times"
            )
        for one in self.call(self.house.dead_letters()):
            if is_stub(one):
                continue
            item = self.items[one.message_id]
            has_used_up = item.attempts + item.more_attempts >= self.rules.max_attempts
            assert item.may_be_dead or has_used_up, (
                f"{item.name} was given up after {item.attempts} attempts"
            )
            assert not item.is_done or item.may_be_dead or has_used_up

    @invariant()
    def the_committed_offset_is_not_past_what_is_unsettled(self) -> None:
        """Of messages that never left their place; one that waits elsewhere for its retry is
        settled here.
        """
        for queue in QUEUES:
            position = self.call(self.house.position(queue)) or 0
            mine = [item for item in self.items.values() if item.queue == queue]
            for item in mine[:position]:
                is_accounted_for = (
                    item.is_done
                    or item.may_be_done
                    or item.may_be_put_off
                    or item.is_cancelled_request
                    or item.is_damaged
                )
                assert is_accounted_for or item.attempts + item.more_attempts > 0, (
                    f"{item.name} was passed over"
                )

    # ----------------------------------------------------------------------------------------------
    # helpers

    def _note_received(self, received: list[LeasedMessage], begun_ms: int) -> None:
        names = [one.message.message_id for one in received]
        assert len(set(names)) == len(names), "twice in one answer"
        for one in received:
            item = self.items[one.message.message_id]
            assert not item.is_done, f"{item.name} came again"
            assert not item.is_cancelled_request, f"{item.name} was withdrawn, and came"
            assert not item.is_damaged or item.may_be_put_off, f"{item.name} is damaged, and came"
            assert item.held_until_ms <= self.now_ms, f"{item.name} was leased twice"
            assert item.attempts < one.attempt <= item.attempts + item.more_attempts + 1, (
                f"attempt {one.attempt} of {item.name} after {item.attempts} and at most "
                f"{item.more_attempts} more"
            )
            assert (one.message.queue, one.message.body) == (item.queue, item.name.encode())
            if item.handle is not None:
                self.stale.append(item.handle)
        if self.rules.ordered:
            self._check_order(names, begun_ms)
        for one in received:
            item = self.items[one.message.message_id]
            item.attempts, item.more_attempts, item.may_be_done = one.attempt, 0, False
            item.handle = one
            item.held_until_ms = one.expires_at_ms

    def _check_none_is_left(self, begun_ms: int) -> None:
        """What was never handed out, and waits for nothing, has come."""
        for item in self.items.values():
            before = [
                one
                for one in self.items.values()
                if one.order_key == item.order_key and one.name < item.name
            ]
            is_blocked = self.rules.ordered and not all(one.is_done for one in before)
            is_new = not item.attempts and not item.more_attempts and item.held_until_ms <= begun_ms
            is_gone = (
                item.is_done
                or item.may_be_done
                or item.may_be_dead
                or item.may_be_put_off
                or item.is_cancelled_request
            )
            is_gone |= item.is_damaged
            assert is_blocked or is_gone or not is_new, (
                f"{item.name} waits for nothing, and did not come"
            )

    def _check_order(self, names: list[str], begun_ms: int) -> None:
        """Whatever lies before it in its key is done, or in this answer too and before it."""
        for number, name in enumerate(names):
            item = self.items[name]
            for other in self.items.values():
                if other.order_key == item.order_key and other.name < name and not other.is_done:
                    has_used_up = other.attempts + other.more_attempts >= self.rules.max_attempts
                    is_gone = (
                        other.may_be_done
                        or other.may_be_dead
                        or has_used_up
                        or other.is_cancelled_request
                    )
                    is_gone |= other.is_damaged
                    has_come = other.name in names[:number]
                    assert has_come or is_gone, f"{name} came before {other.name}"

    def _held(self, at: int, count: int) -> list[Item]:
        """Some of those that a consumer surely holds now."""
        held = [item for item in self.items.values() if self._is_held(item)]
        at = at % len(held) if held else 0
        return held[at : at + count]

    def _is_held(self, item: Item) -> bool:
        is_lent = (
            item.handle is not None
            and not item.is_done
            and item.handle.expires_at_ms <= item.held_until_ms
        )
        return is_lent and self.now_ms + LATE_MS < item.held_until_ms

    def _handle(self, item: Item) -> LeasedMessage:
        assert item.handle is not None
        return item.handle

    def _note_acknowledged(self, item: Item) -> None:
        """Its handle is no stale one: an acknowledgement may be repeated."""
        item.is_done, item.handle = True, None

    def _lapse(self, item: Item, held_until_ms: int) -> None:
        """It is with nobody any more."""
        assert item.handle is not None
        self.stale.append(item.handle)
        item.handle = None
        item.held_until_ms = held_until_ms
        if item.attempts >= self.rules.max_attempts:
            item.is_done = item.may_be_dead = True

    def _forget(self, item: Item) -> None:
        """What became of its lease is not known."""
        item.handle = None
        item.held_until_ms = 0

    def finish(self) -> None:
        """Receive everything that is neither done nor dead: nothing is lost."""
        self.pass_time(LONG_MS)
        for _ in range(12):
            self.pass_time(3_000)
            received = self.call(self.house.receive())
            self._note_received(received, self.now_ms)
            for item, accepted in zip(
                [self.items[one.message.message_id] for one in received],
                self.call(self.house.ack(*received)),
                strict=True,
            ):
                assert accepted
                item.is_done = True
        dead = {one.message_id for one in self.call(self.house.dead_letters())}
        dead |= {
            item.name
            for item in self.items.values()
            if item.is_damaged and self._stub_of(item) in dead
        }
        gone = {
            item.name
            for item in self.items.values()
            if item.is_done or item.may_be_done or item.is_cancelled_request
        } | dead
        lost = sorted(self.items.keys() - gone)
        assert lost == [], f"{lost} were lost"

    def _offset_of(self, item: Item) -> int:
        return [one.name for one in self.items.values() if one.queue == item.queue].index(item.name)

    def _stub_of(self, item: Item) -> str:
        return f"damaged_{item.queue.topic}_{item.queue.number}_{self._offset_of(item)}"


TestLeaseModel = model_test(LeaseMachine, examples=sized(ci=40, full=100))
