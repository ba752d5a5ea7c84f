"""Any sequence of joins, heartbeats, silences, locks, kills and restarts leaves each queue with one
owner, and no lock with two holders.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from delivery.groups import GroupRules
from delivery.members.assignment import Strategy
from delivery.members.service import JoinRequest, Members
from delivery.options import MemberOptions
from delivery.service import Delivery
from storage.errors import Fenced, MessagingError, UnknownMember
from storage.identifiers import SystemRandom
from storage.local.options import FlushPolicy
from storage.message import QueueId
from tests.support.model import ModelMachine, model_test
from tests.support.simulation import End

GROUP = "billing"
LOCK_MS = 5_000
SHORT_MS, LONG_MS = 2_000, 20_000
numbers = st.integers(0, 30)
some_queues = st.sets(st.integers(0, 5), min_size=1, max_size=3)


@dataclass
class Known:
    """A member as the model knows it, until it left or was found to be gone."""

    member_id: str
    session_ms: int
    heard_ms: int

    def is_surely_there(self, now_ms: int) -> bool:
        return self.heard_ms + self.session_ms > now_ms


@dataclass
class Held:
    """A lock as its holder believes in it: at least until then, by its own clock."""

    member_id: str
    until_ms: int


def queues_of(numbers: Iterable[int]) -> list[QueueId]:
    return [QueueId("orders", number) for number in sorted(numbers)]


class MemberMachine(ModelMachine):
    """Drives the members of one group over the embedded engine beside a list of them."""

    @initialize(
        flush=st.sampled_from(FlushPolicy),
        strategy=st.sampled_from([Strategy.AVERAGE, Strategy.CIRCLE, Strategy.STICKY]),
    )
    def begin(self, flush: FlushPolicy, strategy: Strategy) -> None:
        self.strategy = strategy
        self.known: list[Known] = []
        self.held: dict[QueueId, Held] = {}
        self.asked: set[tuple[QueueId, str]] = set()  # locks that a kill left without an answer
        self.queue_count = 3
        self.generation = 0
        self.begin_lives(flush)

    async def start(self) -> None:
        delivery = Delivery(
            self.store,
            self.world.clock,
            SystemRandom(),
            new_task_id=lambda: self.world.identifiers.new("task"),
            rules_of=lambda group: GroupRules(),
        )
        self.members = Members(
            self.store,
            self.world.clock,
            self.world.identifiers,
            MemberOptions(lock_ms=LOCK_MS, share_interval_ms=1_000),
            positions=delivery,
            queue_count=lambda group, topic: self.queue_count,
            rooms_of=lambda group: {},
        )
        await self.members.start()
        self._forget_the_silent()
        for one in self.known:
            one.heard_ms = self.now_ms

    async def close(self) -> None:
        await self.members.save_snapshot()
        await self.store.aclose()

    # ----------------------------------------------------------------------------------------------
    # members

    @rule(session_ms=st.sampled_from([SHORT_MS, LONG_MS, LONG_MS]), client=st.sampled_from("abcd"))
    def join(self, session_ms: int, client: str) -> None:
        begun_ms = self.now_ms
        membership = self.call(self.members.join(GROUP, self._request(client, session_ms)))
        self.known.append(Known(membership.member_id, session_ms, begun_ms))
        assert membership.generation > self.generation

    @precondition(lambda self: self.known)
    @rule(number=numbers)
    def heartbeat(self, number: int) -> None:
        one = self._pick(number)
        begun_ms = self.now_ms
        answer = self.answer(self.members.heartbeat(GROUP, one.member_id, 0, wait_ms=0))
        if isinstance(answer, MessagingError):
            assert isinstance(answer, UnknownMember)
            assert not one.is_surely_there(begun_ms)
            self.known.remove(one)
        else:
            one.heard_ms = begun_ms

    @precondition(lambda self: self.known)
    @rule(number=numbers)
    def leave(self, number: int) -> None:
        one = self._pick(number)
        answer = self.answer(self.members.leave(GROUP, one.member_id))
        self.known.remove(one)
        if not isinstance(answer, MessagingError):
            self.held = {
                q: held for q, held in self.held.items() if held.member_id != one.member_id
            }
            self.asked = {(q, member) for q, member in self.asked if member != one.member_id}

    @precondition(lambda self: self.queue_count < 6)
    @rule()
    def add_a_queue(self) -> None:
        self.queue_count += 1

    # ----------------------------------------------------------------------------------------------
    # locks

    @precondition(lambda self: self.known)
    @rule(number=numbers, wanted=some_queues, owned=st.booleans())
    def lock(self, number: int, wanted: set[int], owned: bool) -> None:
        one = self._pick(number)
        queues = self._owned(one) if owned else []
        queues = queues or queues_of(wanted)
        begun_ms = self.now_ms
        locks = self.answer(self.members.lock(GROUP, one.member_id, queues))
        if isinstance(locks, MessagingError):
            assert isinstance(locks, UnknownMember | Fenced)
            return
        one.heard_ms = begun_ms
        assert {*locks.locked, *locks.refused} == set(queues)
        for queue in locks.locked:
            other = self.held.get(queue)
            assert (
                other is None or other.member_id == one.member_id or other.until_ms <= self.now_ms
            )
            self.held[queue] = Held(one.member_id, begun_ms + LOCK_MS)
            self.asked = {(q, member) for q, member in self.asked if q != queue}
        for queue, holder in locks.refused.items():
            other = self.held.get(queue)
            is_held = other is not None and other.member_id == holder != one.member_id
            assert is_held or (queue, holder) in self.asked

    @precondition(lambda self: self.known and self.held)
    @rule(number=numbers, wanted=some_queues)
    def unlock(self, number: int, wanted: set[int]) -> None:
        one, queues = self._pick(number), queues_of(wanted)
        answer = self.answer(self.members.unlock(GROUP, one.member_id, queues))
        if isinstance(answer, MessagingError):
            return
        for queue in queues:
            self.asked.discard((queue, one.member_id))
            if queue in self.held and self.held[queue].member_id == one.member_id:
                del self.held[queue]

    # ----------------------------------------------------------------------------------------------
    # time, kills, ends

    @rule(ms=st.sampled_from([10, 900, 2_500, 6_000]))
    def pass_time(self, ms: int) -> None:
        self.sleep(ms)

    @rule()
    def sweep(self) -> None:
        self.call(self.members.run_once())
        self._forget_the_silent()

    @rule()
    def keep_a_snapshot(self) -> None:
        self.call(self.members.save_snapshot())

    @rule()
    def kill(self) -> None:
        self.restart()

    @rule()
    def close_and_restart(self) -> None:
        self.restart(End.CLOSE)

    @precondition(lambda self: self.known)
    @rule(number=numbers, wanted=some_queues, after_ms=st.integers(0, 12))
    def kill_in_the_middle_of_a_lock(self, number: int, wanted: set[int], after_ms: int) -> None:
        one = self._pick(number)
        queues = [queue for queue in self._owned(one) if queue.number in wanted]
        if not queues:
            return
        self.call_for(after_ms, self.members.lock(GROUP, one.member_id, queues))
        self.asked |= {(queue, one.member_id) for queue in queues}
        self.restart()

    @rule(session_ms=st.sampled_from([SHORT_MS, LONG_MS]), after_ms=st.integers(0, 12))
    def kill_in_the_middle_of_a_join(self, session_ms: int, after_ms: int) -> None:
        """It is a member or it is none; either way each queue has one owner."""
        known = {one.member_id for one in self.known}
        self.call_for(after_ms, self.members.join(GROUP, self._request("e", session_ms)))
        self.restart()
        for member_id, joined in self.members.of_group(GROUP).members.items():
            if member_id not in known and joined.client_id == "e":
                self.known.append(Known(member_id, session_ms, self.now_ms))

    # ----------------------------------------------------------------------------------------------
    # what holds

    @invariant()
    def who_was_heard_of_is_a_member_and_who_left_is_none(self) -> None:
        found = set(self.members.of_group(GROUP).members)
        there = {one.member_id for one in self.known if one.is_surely_there(self.now_ms)}
        assert there <= found <= {one.member_id for one in self.known}

    @invariant()
    def each_queue_has_one_owner(self) -> None:
        members = self.members.of_group(GROUP)
        owned = sorted(queue for its_queues in members.owned.values() for queue in its_queues)
        counted = members.shared.queue_counts.get("orders", 0) if members.members else 0
        assert owned == queues_of(range(counted))
        assert set(members.owned) == set(members.members)

    @invariant()
    def generations_rise(self) -> None:
        members = self.members.of_group(GROUP)
        assert members.generation >= self.generation
        self.generation = members.generation

    def finish(self) -> None:
        self.sleep(1_000)
        self.call(self.members.run_once())
        members = self.members.of_group(GROUP)
        if members.members:
            assert members.shared.queue_counts == {"orders": self.queue_count}

    def _forget_the_silent(self) -> None:
        """Those whose sessions had ended when the service looked."""
        found = self.members.of_group(GROUP).members
        self.known = [
            one for one in self.known if one.member_id in found or one.is_surely_there(self.now_ms)
        ]

    def _owned(self, one: Known) -> list[QueueId]:
        return self.members.of_group(GROUP).owned.get(one.member_id, [])

    def _pick(self, number: int) -> Known:
        return self.known[number % len(self.known)]

    def _request(self, client_id: str, session_ms: int) -> JoinRequest:
        return JoinRequest(client_id, ("orders",), session_ms, self.strategy)


TestMemberModel = model_test(MemberMachine, examples=40)
