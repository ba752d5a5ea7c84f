"""Any sequence of requests, replies, cancels, leases, hours, kills and restarts leaves what a plain
model says.
"""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from delivery.groups import GroupRules, Subscription
from delivery.options import RequestOptions
from delivery.receive.receive import Request as Receive
from delivery.requests.events import ReplyBody, asked_by
from delivery.requests.send import Outcome, RepeatableKey
from delivery.requests.service import Requests
from delivery.requests.table import RequestState
from delivery.service import Delivery
from storage.errors import RequestClosed
from storage.local.options import FlushPolicy
from storage.message import QueueId
from tests.support.builders import message
from tests.support.model import ModelMachine, model_test
from tests.support.simulation import End

QUOTES = QueueId("quotes", 0)
RULES = GroupRules(subscriptions=(Subscription("quotes"),), max_attempts=1_000)
LEASE_MS = 5_000
SHORT_MS, LONG_MS = 2_000, 3_600_000
UNSURE_MS = 400  # around a deadline: what takes a moment may fall on either side of it
numbers = st.integers(0, 30)


@dataclass
class Asked:
    """A request as the model knows it; `lent_until_ms`: of the lease that `handle` is."""

    request_id: str
    key: str | None
    expires_ms: int
    state: str = "pending"
    reply: bytes | None = None
    late: bool = False
    handle: str | None = None
    lent_until_ms: int = 0
    is_settled: bool = False


class RequestMachine(ModelMachine):
    """Drives requests and leases over the embedded engine beside a list of what was asked."""

    @initialize(flush=st.sampled_from(FlushPolicy), closed_kept=st.sampled_from([3, 1_000]))
    def begin(self, flush: FlushPolicy, closed_kept: int) -> None:
        self.closed_kept = closed_kept
        self.model: list[Asked] = []
        self.begin_lives(flush, index_file_entries=100)

    async def start(self) -> None:
        world = self.world
        self.requests = Requests(
            self.store,
            world.clock,
            world.identifiers,
            RequestOptions(closed_kept=self.closed_kept),
            ack_beside=lambda handle, message_id, make: self.delivery.ack_beside(
                handle, message_id, make
            ),
        )
        self.delivery = Delivery(
            self.store,
            world.clock,
            world.randomness,
            new_task_id=lambda: world.identifiers.new("task"),
            rules_of=lambda group: RULES,
            cancelled_requests=self.requests,
        )
        await self.store.create_topic("quotes", queue_count=1)
        await self.delivery.open_group("workers")
        await self.delivery.start()
        await self.requests.start()

    async def save_snapshots(self) -> None:
        await self.requests.save_snapshot()
        await self.delivery.save_snapshot()

    async def close(self) -> None:
        await self.save_snapshots()
        await self.store.aclose()

    # ----------------------------------------------------------------------------------------------
    # asking

    @rule(
        timeout_ms=st.sampled_from([SHORT_MS, LONG_MS, LONG_MS]),
        key=st.none() | st.sampled_from("abcd"),
    )
    def ask(self, timeout_ms: int, key: str | None) -> None:
        self._leave_deadlines()
        known = next((one for one in self.model if key is not None and one.key == key), None)
        asking = message(b"what?", queue=QUOTES, message_id=f"m{len(self.model)}")
        repeatable = None if key is None else RepeatableKey(key, "print", 1 << 40)
        call = self.requests.open(
            "quotes", lambda: asking, timeout_ms=timeout_ms, key=repeatable, durability=None
        )
        outcome = self.call(call)
        assert outcome.replayed is (known is not None)
        if known is None:
            self.model.append(Asked(outcome.request.request_id, key, outcome.request.expires_ms))
        else:
            assert outcome.request.request_id == known.request_id

    @precondition(lambda self: self.model)
    @rule(number=numbers)
    def cancel(self, number: int) -> None:
        self._leave_deadlines()
        one = self._pick(number)
        answer = self.answer(self.requests.cancel(one.request_id))
        if one.state in ("pending", "cancelled"):
            one.state = "cancelled"
            assert answer.state is RequestState.CANCELLED
        else:
            assert isinstance(answer, RequestClosed)

    @precondition(lambda self: self.model)
    @rule(number=numbers, with_handle=st.booleans())
    def reply(self, number: int, with_handle: bool) -> None:
        self._leave_deadlines()
        one = self._pick(number)
        handle = one.handle if with_handle else None
        is_lent = handle is not None and (one.is_settled or one.lent_until_ms > self.now_ms)
        body = b"reply to " + one.request_id.encode()
        answer = self.answer(self._reply(one, body, handle))
        if one.state == "cancelled" or one.reply is not None:
            assert isinstance(answer, RequestClosed)
            return
        one.reply, one.late = body, one.state == "timed_out"
        one.state = "timed_out" if one.late else "replied"
        assert (answer.request.state.value, answer.request.reply.late) == (one.state, one.late)
        if not one.is_settled or not with_handle:
            # One that was settled before a kill may count as settled or not: the acknowledgement is
            # not asked twice.
            assert answer.request.reply.settled is is_lent
        one.is_settled |= is_lent

    # ----------------------------------------------------------------------------------------------
    # leases

    @rule(most=st.integers(1, 4))
    def receive(self, most: int) -> None:
        self._leave_deadlines()
        request = Receive(max_messages=most, max_bytes=1 << 20, lease_ms=LEASE_MS)
        for handed in self.call(self.delivery.receive("workers", RULES, request)):
            asked = asked_by(handed.message)
            (one,) = [one for one in self.model if one.request_id == asked.request_id]
            assert not one.is_settled, "it was settled with its reply"
            assert one.state != "cancelled", "it was cancelled"
            assert one.lent_until_ms <= self.now_ms, "it is lent to somebody else"
            assert asked.reply_by_ms == one.expires_ms
            one.handle, one.lent_until_ms = handed.handle, handed.expires_at_ms

    # ----------------------------------------------------------------------------------------------
    # time, kills, ends

    @rule(ms=st.sampled_from([10, 700, 2_500, 6_000]))
    def pass_time(self, ms: int) -> None:
        self.sleep(ms)
        self._pass_deadlines()

    @rule()
    def sweep(self) -> None:
        self._leave_deadlines()
        self.call(self.requests.run_once())
        self.call(self.delivery.run_once())

    @rule()
    def keep_a_snapshot(self) -> None:
        self.call(self.save_snapshots())

    @rule()
    def kill(self) -> None:
        self.restart()

    @rule()
    def close_and_restart(self) -> None:
        self.restart(End.CLOSE)

    @precondition(lambda self: self.model)
    @rule(number=numbers, after_ms=st.integers(0, 12))
    def kill_in_the_middle_of_a_reply(self, number: int, after_ms: int) -> None:
        """Reply and acknowledgement are both there afterwards, or neither."""
        self._leave_deadlines()
        one = self._pick(number)
        if (
            one.state == "cancelled"
            or one.reply is not None
            or one.handle is None
            or one.is_settled
        ):
            return
        is_lent = one.lent_until_ms > self.now_ms
        body = b"cut " + one.request_id.encode()
        was_timed_out = one.state == "timed_out"
        self.call_for(after_ms, self._reply(one, body, one.handle))
        self.restart()
        found = self.call(self.requests.get(one.request_id))
        if found.reply is not None:
            one.reply, one.late = body, was_timed_out
            one.state = "timed_out" if was_timed_out else "replied"
            one.is_settled = is_lent
            assert found.reply.settled is is_lent

    @invariant()
    def every_request_is_what_the_model_says(self) -> None:
        self._leave_deadlines()
        for one in self.model:
            found = self.call(self.requests.get(one.request_id))
            assert found.state.value == one.state
            stored = self.call(self.requests.read_reply(found))
            assert (None if stored is None else stored.body) == one.reply
            assert (found.reply is not None and found.reply.late) == one.late

    # ----------------------------------------------------------------------------------------------
    # helpers

    def _pick(self, number: int) -> Asked:
        return self.model[number % len(self.model)]

    async def _reply(self, one: Asked, body: bytes, handle: str | None) -> Outcome:
        return await self.requests.reply(
            one.request_id, ReplyBody(body, None, {}), handle=handle, key=None, fingerprint=""
        )

    def _leave_deadlines(self) -> None:
        """No change happens so near to a deadline that nobody can say on which side of it."""
        while any(
            abs(self.now_ms - at_ms) < UNSURE_MS
            for one in self.model
            for at_ms in (
                (one.expires_ms, one.lent_until_ms)
                if one.state == "pending"
                else (one.lent_until_ms,)
            )
        ):
            self.sleep(2 * UNSURE_MS)
        self._pass_deadlines()

    def _pass_deadlines(self) -> None:
        for one in self.model:
            if one.state == "pending" and one.expires_ms <= self.now_ms:
                one.state = "timed_out"


TestRequestModel = model_test(RequestMachine, examples=40)
