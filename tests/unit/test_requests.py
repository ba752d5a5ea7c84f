"""Requests and their replies, without HTTP: who wins, what is kept, what memory may forget."""

import asyncio
from functools import partial
from typing import Any

import pytest

from delivery.groups import GroupRules, Subscription
from delivery.leases import receipt_handle
from delivery.options import RequestOptions
from delivery.receive.receive import LeasedMessage
from delivery.receive.receive import Request as Receive
from delivery.requests.events import REPLY_QUEUE, ReplyBody, asked_by
from delivery.requests.recent_replies import RecentReplies
from delivery.requests.send import Outcome, RepeatableKey
from delivery.requests.service import Requests
from delivery.requests.table import Request, RequestState
from delivery.service import Delivery
from storage.errors import (
    Backpressure,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    MessageGone,
    MessagingError,
    RequestClosed,
    StoreClosed,
    UnknownRequest,
)
from storage.identifiers import Identifiers, SystemRandom
from storage.memory import MemoryMessageStore
from storage.message import QueueId
from tests.support.builders import message
from tests.support.clock import ManualClock

QUOTES = QueueId("quotes", 0)
RULES = GroupRules(subscriptions=(Subscription("quotes"),))
ORDERED = GroupRules(subscriptions=(Subscription("quotes"),), ordered=True)
ONE = Receive(max_messages=1, max_bytes=1 << 20, lease_ms=10_000)
ALL = Receive(max_messages=100, max_bytes=1 << 20, lease_ms=10_000)
TIMEOUT_MS = 5_000
LEASE_OVER_MS = 12_000  # leases are looked through a little later than they end


class House:
    """The service over the reference engine, with a group of workers."""

    def __init__(self, **options: int) -> None:
        self.clock = ManualClock()
        self.store = MemoryMessageStore(self.clock)
        self.options = RequestOptions(**options)
        self.count = 0

    async def open(self) -> "House":
        """From the log; again after what stands for a restart."""
        await self.store.create_topic("quotes", queue_count=1)
        identifiers = Identifiers(self.clock, SystemRandom())
        self.requests = Requests(
            self.store,
            self.clock,
            identifiers,
            self.options,
            ack_beside=lambda handle, message_id, make: self.delivery.ack_beside(
                handle, message_id, make
            ),
        )
        self.delivery = Delivery(
            self.store,
            self.clock,
            SystemRandom(),
            new_task_id=lambda: identifiers.new("task"),
            rules_of=lambda group: RULES,
            cancelled_requests=self.requests,
        )
        for group in ("workers", "others"):
            await self.delivery.open_group(group)
        await self.delivery.start()
        await self.requests.start()
        return self

    async def ask(
        self, *, key: RepeatableKey | None = None, timeout_ms: int = TIMEOUT_MS, **fields: Any
    ) -> Request:
        return (await self.outcome(key=key, timeout_ms=timeout_ms, **fields)).request

    async def outcome(
        self, *, key: RepeatableKey | None = None, timeout_ms: int = TIMEOUT_MS, **fields: Any
    ) -> Outcome:
        self.count += 1
        asking = message(b"what?", queue=QUOTES, message_id=f"m{self.count}", **fields)
        return await self.requests.open(
            "quotes", lambda: asking, timeout_ms=timeout_ms, key=key, durability=None
        )

    async def reply(
        self,
        request_id: str,
        body: bytes = b"that",
        *,
        handle: str | None = None,
        key: str | None = None,
        fingerprint: str = "p",
    ) -> Outcome:
        return await self.requests.reply(
            request_id, ReplyBody(body, None, {}), handle=handle, key=key, fingerprint=fingerprint
        )

    async def receive(
        self, request: Receive = ALL, rules: GroupRules = RULES
    ) -> list[LeasedMessage]:
        return await self.delivery.receive("workers", rules, request)

    async def body_of_reply(self, request_id: str) -> bytes | None:
        found = await self.requests.read_reply(await self.requests.get(request_id))
        return None if found is None else found.body


def repeatable(key: str, fingerprint: str = "print", window_ms: int = 60_000) -> RepeatableKey:
    return RepeatableKey(key, fingerprint, window_ms)


@pytest.fixture
async def house() -> House:
    return await House().open()


# --------------------------------------------------------------------------------------------------
# ask and be replied


async def test_a_request_is_handed_out_as_one_and_its_reply_is_found_by_its_id(house):
    request = await house.ask()
    (handed,) = await house.receive()
    asked = asked_by(handed.message)
    outcome = await house.reply(asked.request_id, b"42", handle=handed.handle)

    assert (asked.request_id, asked.reply_by_ms) == (request.request_id, request.expires_ms)
    assert (outcome.request.state, outcome.request.reply.late, outcome.request.reply.settled) == (
        RequestState.REPLIED,
        False,
        True,
    )
    assert await house.body_of_reply(request.request_id) == b"42"
    (stored,) = await house.store.read(REPLY_QUEUE, 0, max_messages=10, max_bytes=1 << 20)
    names = ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "CLUSTER")
    assert [stored.system[name] for name in names] == [
        request.request_id,
        "escrowmq",
        "5000",
        "reply",
        "DefaultCluster",
    ]
    assert [handed.message.system[name] for name in names[:3]] == [
        stored.system[name] for name in names[:3]
    ]


async def test_a_reply_may_come_before_the_one_who_asks_has_been_answered(house):
    """Whoever consumes sees the message as soon as it is stored."""
    asking = asyncio.ensure_future(house.ask())
    assert await house.store.wait_for_arrival(QUOTES, 0, timeout_ms=10_000)
    found = await house.receive()
    request_id = asked_by(found[0].message).request_id

    await house.reply(request_id, handle=found[0].handle)

    assert (await asking).state is RequestState.REPLIED


async def test_the_reply_and_the_acknowledgement_are_one_append(house):
    await house.ask()
    (handed,) = await house.receive()
    before = house.store.append

    appends: list[int] = []

    async def counting(messages: Any, **options: Any) -> Any:
        appends.append(len(messages))
        return await before(messages, **options)

    house.store.append = counting
    await house.reply(asked_by(handed.message).request_id, handle=handed.handle)

    assert appends == [3], "the reply, what became of the request, what became of its message"
    house.clock.advance(LEASE_OVER_MS)
    assert await house.receive() == []


async def test_a_reply_that_cannot_be_stored_settles_nothing(house):
    request = await house.ask()
    (handed,) = await house.receive()
    append = house.store.append

    async def refuses(messages: Any, **options: Any) -> Any:
        raise StoreClosed

    house.store.append = refuses
    with pytest.raises(StoreClosed):
        await house.reply(request.request_id, handle=handed.handle)
    house.store.append = append

    assert request.state is RequestState.PENDING
    assert (await house.reply(request.request_id, handle=handed.handle)).request.reply.settled


@pytest.mark.parametrize("handle", [None, "lh_nonsense", "ended"])
async def test_a_reply_without_a_lease_is_stored_all_the_same_and_says_so(house, handle):
    request = await house.ask(timeout_ms=60_000)
    (handed,) = await house.receive()
    if handle == "ended":
        house.clock.advance(LEASE_OVER_MS)
        handle = handed.handle

    outcome = await house.reply(request.request_id, handle=handle)

    assert (outcome.request.state, outcome.request.reply.settled) == (RequestState.REPLIED, False)
    house.clock.advance(LEASE_OVER_MS)
    assert len(await house.receive()) == 1, "its message comes again"


@pytest.mark.parametrize("is_acked", [False, True])
async def test_the_handle_of_another_message_settles_neither(house, is_acked):
    request, other = await house.ask(timeout_ms=60_000), await house.ask(timeout_ms=60_000)
    handles = {asked_by(one.message).request_id: one.handle for one in await house.receive()}
    if is_acked:
        await house.delivery.ack("workers", [handles[other.request_id]])

    outcome = await house.reply(request.request_id, handle=handles[other.request_id])

    assert (outcome.request.state, outcome.request.reply.settled) == (RequestState.REPLIED, False)
    house.clock.advance(LEASE_OVER_MS)
    again = [asked_by(one.message).request_id for one in await house.receive()]
    assert again == ([request.request_id] if is_acked else [request.request_id, other.request_id])


async def test_a_handle_behind_the_end_of_its_queue_settles_nothing(house):
    request = await house.ask()
    await house.receive()
    (made_up,) = receipt_handle.encode([(receipt_handle.queue_hash(QUOTES), 1)], 7)

    assert not (await house.reply(request.request_id, handle=made_up)).request.reply.settled


async def test_the_lease_of_another_group_is_settled_there(house):
    request = await house.ask()
    (first,) = await house.receive()
    (second,) = await house.delivery.receive("others", RULES, ONE)

    assert (await house.reply(request.request_id, handle=second.handle)).request.reply.settled

    assert await house.delivery.ack("workers", [first.handle]) == [True]
    house.clock.advance(LEASE_OVER_MS)
    assert await house.delivery.receive("others", RULES, ONE) == []


async def test_a_reply_frees_the_key_of_an_ordered_group(house):
    for _ in range(2):
        await house.ask(system={"__SHARDINGKEY": "customer"})
    (first,) = await house.receive(ONE, ORDERED)
    assert await house.receive(ONE, ORDERED) == []

    await house.reply(asked_by(first.message).request_id, handle=first.handle)

    assert len(await house.receive(ONE, ORDERED)) == 1


# --------------------------------------------------------------------------------------------------
# who is first


async def test_of_two_replies_the_first_one_counts(house):
    request = await house.ask()

    answers = await asyncio.gather(
        *[house.reply(request.request_id, body) for body in (b"1", b"2")], return_exceptions=True
    )

    assert [type(answer) for answer in answers] == [Outcome, RequestClosed]
    assert answers[1].state == "replied"
    assert await house.body_of_reply(request.request_id) == b"1"


async def test_a_reply_at_the_deadline_is_late_and_one_before_it_is_not(house):
    in_time, late = await house.ask(), await house.ask()

    house.clock.advance(TIMEOUT_MS - 1)
    assert not (await house.reply(in_time.request_id)).request.reply.late
    house.clock.advance(1)
    outcome = await house.reply(late.request_id)

    assert (outcome.request.state, outcome.request.reply.late) == (RequestState.TIMED_OUT, True)
    assert await house.requests.run_once() == 0, "nothing is left to be timed out"


async def test_a_reply_and_the_timeout_at_once_are_one_or_the_other(house):
    request = await house.ask()
    house.clock.advance(TIMEOUT_MS)

    outcome, closed = await asyncio.gather(
        house.reply(request.request_id), house.requests.run_once()
    )

    assert (outcome.request.state, outcome.request.reply.late, closed) == (
        RequestState.TIMED_OUT,
        True,
        0,
    )


async def test_a_late_reply_is_kept_once_and_marked(house):
    request = await house.ask()
    house.clock.advance(TIMEOUT_MS)
    assert await house.requests.run_once() == 1
    assert await house.body_of_reply(request.request_id) is None

    outcome = await house.reply(request.request_id, b"late")

    assert (outcome.request.state, outcome.request.reply.late) == (RequestState.TIMED_OUT, True)
    assert await house.body_of_reply(request.request_id) == b"late"
    with pytest.raises(RequestClosed) as refused:
        await house.reply(request.request_id)
    assert refused.value.state == "timed_out"


@pytest.mark.parametrize("first", ["reply", "cancel"])
async def test_a_reply_and_a_cancel_at_once_are_one_or_the_other(house, first):
    request = await house.ask()
    changes = {
        "reply": house.reply(request.request_id),
        "cancel": house.requests.cancel(request.request_id),
    }
    order = [first, *({"reply", "cancel"} - {first})]

    answers = await asyncio.gather(*[changes[name] for name in order], return_exceptions=True)

    assert isinstance(answers[1], RequestClosed)
    assert request.state is {"reply": RequestState.REPLIED, "cancel": RequestState.CANCELLED}[first]


async def test_a_cancel_again_is_no_error_and_one_too_late_is(house):
    cancelled, replied, timed_out = await house.ask(), await house.ask(), await house.ask()
    await house.requests.cancel(cancelled.request_id)
    await house.reply(replied.request_id)
    house.clock.advance(TIMEOUT_MS)

    assert (await house.requests.cancel(cancelled.request_id)).state is RequestState.CANCELLED
    for request in (replied, timed_out):
        with pytest.raises(RequestClosed):
            await house.requests.cancel(request.request_id)
    with pytest.raises(RequestClosed):
        await house.reply(cancelled.request_id)


async def test_whoever_looks_after_the_deadline_sees_the_timeout_before_any_sweep(house):
    request = await house.ask()
    house.clock.advance(TIMEOUT_MS)

    assert (await house.requests.get(request.request_id)).state is RequestState.TIMED_OUT


# --------------------------------------------------------------------------------------------------
# handing out


async def test_a_cancelled_request_is_not_handed_out_and_a_timed_out_one_is(house):
    cancelled, timed_out = await house.ask(), await house.ask()
    await house.requests.cancel(cancelled.request_id)
    house.clock.advance(TIMEOUT_MS)
    await house.requests.run_once()

    assert [asked_by(one.message).request_id for one in await house.receive()] == [
        timed_out.request_id
    ]


async def test_a_request_that_is_cancelled_while_it_is_lent_does_not_come_again(house):
    request = await house.ask(timeout_ms=60_000)
    (handed,) = await house.receive()
    await house.requests.cancel(request.request_id)

    assert await house.delivery.nack("workers", RULES, []) == []
    house.clock.advance(LEASE_OVER_MS)

    assert await house.receive() == []
    assert await house.delivery.ack("workers", [handed.handle]) == [False]


# --------------------------------------------------------------------------------------------------
# repeating


async def test_a_request_again_with_its_key_is_the_same_one_as_it_is_now(house):
    first = await house.outcome(key=repeatable("q-55"))
    await house.reply(first.request.request_id)
    again = await house.outcome(key=repeatable("q-55"))

    assert (first.replayed, again.replayed) == (False, True)
    assert (again.request.request_id, again.request.state) == (
        first.request.request_id,
        RequestState.REPLIED,
    )
    assert (await house.store.offsets(QUOTES)).end == 1
    with pytest.raises(IdempotencyKeyReused):
        await house.outcome(key=repeatable("q-55", "another"))


async def test_a_key_counts_within_its_window(house):
    first = await house.ask(key=repeatable("q", window_ms=1_000))
    house.clock.advance(1_000)
    assert (await house.ask(key=repeatable("q", window_ms=1_000))).request_id == first.request_id
    house.clock.advance(1)

    assert (await house.ask(key=repeatable("q", window_ms=1_000))).request_id != first.request_id


async def test_the_same_request_twice_at_once_is_in_progress(house):
    answers = await asyncio.gather(
        *[house.outcome(key=repeatable("q")) for _ in range(3)], return_exceptions=True
    )

    assert [type(answer) for answer in answers] == [
        Outcome,
        IdempotencyInProgress,
        IdempotencyInProgress,
    ]


async def test_a_reply_again_with_its_key_is_the_same_one(house):
    request = await house.ask()
    first = await house.reply(request.request_id, key="r-1")

    again = await house.reply(request.request_id, key="r-1")

    assert (first.replayed, again.replayed) == (False, True)
    with pytest.raises(IdempotencyKeyReused):
        await house.reply(request.request_id, key="r-1", fingerprint="another")
    with pytest.raises(RequestClosed):
        await house.reply(request.request_id, key="r-2")


# --------------------------------------------------------------------------------------------------
# memory and restart


async def test_closed_requests_that_memory_has_forgotten_are_found_in_the_log():
    house = await House(closed_kept=2).open()
    asked = [await house.ask(key=repeatable(str(number))) for number in range(8)]
    await house.reply(asked[0].request_id, b"zero", key="k")
    await house.requests.cancel(asked[1].request_id)
    house.clock.advance(TIMEOUT_MS)
    await house.requests.run_once()
    ids = [request.request_id for request in asked]
    assert house.requests.table.get(ids[0]) is None

    assert [(await house.requests.get(one)).state.value for one in ids] == [
        "replied",
        "cancelled",
        *["timed_out"] * 6,
    ]
    assert await house.body_of_reply(ids[0]) == b"zero"
    assert (await house.outcome(key=repeatable("0"))).request.request_id == ids[0]
    assert (await house.reply(ids[0], key="k")).replayed
    assert (await house.reply(ids[2], b"late")).request.reply.late
    for one in ids[3:]:
        await house.requests.get(one)
    assert await house.body_of_reply(ids[2]) == b"late"
    with pytest.raises(RequestClosed):
        await house.reply(ids[2])
    with pytest.raises(UnknownRequest):
        await house.requests.get("req_nobody")


@pytest.mark.parametrize("with_snapshot", [False, True])
async def test_a_restart_gives_everything_back(house, with_snapshot):
    replied, cancelled, timed_out, pending = [
        await house.ask(key=repeatable(str(n)), timeout_ms=1_000 * (n + 1)) for n in range(4)
    ]
    await house.reply(replied.request_id, b"yes", key="k")
    await house.requests.cancel(cancelled.request_id)
    house.clock.advance(3_000)
    await house.requests.run_once()
    if with_snapshot:
        assert await house.requests.save_snapshot()
        assert not await house.requests.save_snapshot()

    house.clock.restart()
    await house.open()

    ids = [one.request_id for one in (replied, cancelled, timed_out, pending)]
    assert [(await house.requests.get(one)).state.value for one in ids] == [
        "replied",
        "cancelled",
        "timed_out",
        "pending",
    ]
    assert await house.body_of_reply(ids[0]) == b"yes"
    assert (await house.reply(ids[0], key="k")).replayed
    assert (await house.outcome(key=repeatable("3"))).request.request_id == ids[3]
    assert [asked_by(one.message).request_id for one in await house.receive()] == [
        ids[0],
        ids[2],
        ids[3],
    ]
    house.clock.advance(1_000)
    assert await house.requests.run_once() == 1


async def test_a_snapshot_holds_no_request_that_is_not_stored_yet(house):
    await house.ask()
    append, key = house.store.append, repeatable("k")
    is_appending, never = asyncio.Event(), asyncio.Event()

    async def takes_for_ever(messages: Any, **options: Any) -> Any:
        is_appending.set()
        await never.wait()

    house.store.append = takes_for_ever
    asking = asyncio.ensure_future(house.outcome(key=key))
    await is_appending.wait()
    assert await house.requests.save_snapshot()
    asking.cancel()
    house.store.append = append
    await house.open()  # as after a crash

    outcome = await house.outcome(key=key)

    assert not outcome.replayed
    assert (await house.store.offsets(QUOTES)).end == 2


async def test_a_start_replays_only_what_came_after_the_snapshot(house):
    replied, cancelled = await house.ask(), await house.ask()
    (first, _) = await house.receive()
    await house.reply(replied.request_id, handle=first.handle)
    await house.requests.cancel(cancelled.request_id)
    house.clock.advance(TIMEOUT_MS)
    await house.ask()
    await house.requests.save_snapshot()
    timed_out = await house.ask()
    house.clock.advance(TIMEOUT_MS)
    await house.reply(timed_out.request_id)

    assert await house.requests.start() == 3, "it was opened, it timed out, it was replied to"


async def test_a_clock_that_is_set_back_makes_no_request_wait_longer_than_it_was_to(house):
    request = await house.ask()
    house.clock.jump(-3_600_000)

    await house.open()
    house.clock.advance(TIMEOUT_MS)

    assert (await house.requests.get(request.request_id)).state is RequestState.TIMED_OUT


async def test_there_is_room_for_so_many_pending_requests():
    house = await House(max_pending=2).open()
    first, _ = await house.ask(), await house.ask()
    with pytest.raises(Backpressure):
        await house.ask()

    await house.requests.cancel(first.request_id)

    assert (await house.ask()).state is RequestState.PENDING


async def test_a_request_that_could_not_be_stored_never_was(house):
    append = house.store.append

    async def refuses(messages: Any, **options: Any) -> Any:
        raise StoreClosed

    house.store.append = refuses
    with pytest.raises(StoreClosed):
        await house.ask(key=repeatable("q"))
    house.store.append = append

    assert house.requests.table.pending_count == 0
    assert not (await house.outcome(key=repeatable("q"))).replayed


# --------------------------------------------------------------------------------------------------
# waiting


def closing_of(house, request) -> "asyncio.Future[None]":
    """Done when the service calls who waits for the request."""
    closing = asyncio.get_running_loop().create_future()
    house.requests.call_when_closed(request.request_id, lambda: closing.set_result(None))
    return closing


async def test_a_thousand_who_wait_are_woken_each_by_his_own_reply(house):
    asked = [await house.ask() for _ in range(1_000)]
    waiting = [closing_of(house, request) for request in asked]

    for number in (999, 0, 500):
        await house.reply(asked[number].request_id)
        await waiting[number]
    assert sum(one.done() for one in waiting) == 3
    house.requests.stop()

    await asyncio.wait(waiting)


async def test_who_waits_gets_the_reply_without_a_read_and_others_from_the_log(house, monkeypatch):
    awaited, other = await house.ask(), await house.ask()
    waiting = closing_of(house, awaited)
    for request in (awaited, other):
        await house.reply(request.request_id, b"yes")
    await waiting

    with monkeypatch.context() as without_reads:
        without_reads.setattr(house.store, "read", None)
        assert await house.body_of_reply(awaited.request_id) == b"yes"
        with pytest.raises(TypeError):
            await house.body_of_reply(other.request_id)

    assert await house.body_of_reply(awaited.request_id) == b"yes"
    assert await house.body_of_reply(other.request_id) == b"yes"


async def test_a_reply_that_could_not_be_stored_is_not_read(house):
    request = await house.ask()
    closed: list[int] = []
    call = partial(closed.append, 1)
    house.requests.call_when_closed(request.request_id, call)
    append = house.store.append

    async def refuses(messages: Any, **options: Any) -> Any:
        raise StoreClosed

    house.store.append = refuses
    with pytest.raises(StoreClosed):
        await house.reply(request.request_id, b"first")
    house.store.append = append
    assert (await house.body_of_reply(request.request_id), closed) == (None, [])
    house.requests.forget_call(request.request_id, call)

    await house.reply(request.request_id, b"second")

    assert await house.body_of_reply(request.request_id) == b"second"


async def test_a_reply_that_is_no_longer_kept_is_gone_for_a_client_that_waited(house):
    request = await house.ask()
    waiting = closing_of(house, request)
    await house.reply(request.request_id)
    await waiting
    await house.store.delete_topic(REPLY_QUEUE.topic)
    await house.store.create_topic(REPLY_QUEUE.topic, queue_count=1)

    with pytest.raises(MessageGone):
        await house.body_of_reply(request.request_id)


def test_few_and_small_replies_are_kept_until_they_are_read():
    recent = RecentReplies()
    for number in range(300):
        recent.keep(str(number), message(b"x"))
    recent.keep("large", message(b"x" * 20_000))

    assert [recent.take(one) is not None for one in ("0", "43", "44", "299", "large", "44")] == [
        False, False, True, True, False, False
    ]  # fmt: skip


@pytest.mark.parametrize("change", ["cancel", "timeout"])
async def test_who_waits_is_woken_by_any_end(house, change):
    request = await house.ask()
    waiting = closing_of(house, request)

    if change == "cancel":
        await house.requests.cancel(request.request_id)
    else:
        house.clock.advance(TIMEOUT_MS)
        await house.requests.run_once()

    await asyncio.wait_for(waiting, 10)


async def test_a_change_goes_on_when_the_one_who_asked_for_it_has_gone(house):
    request = await house.ask()
    replying = asyncio.ensure_future(house.reply(request.request_id))
    await asyncio.sleep(0)
    replying.cancel()

    await house.requests.drain()

    assert request.state is RequestState.REPLIED


def test_every_error_of_requests_is_one_of_the_house():
    assert issubclass(UnknownRequest, MessagingError)
    assert issubclass(RequestClosed, MessagingError)
