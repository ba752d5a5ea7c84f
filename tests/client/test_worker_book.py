"""What a worker starts, extends, settles and gives back, with a clock that the test sets."""

import json
from datetime import UTC, datetime, timedelta
from math import inf

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from escrowmq_client.call import Call
from escrowmq_client.models.consume import (
    ReceivedMessage,
    ReceivedMessages,
    SettleResult,
    SettleResults,
)
from escrowmq_client.models.problem import Problem
from escrowmq_client.worker.book import Book, Lease, WorkerOptions, message_of, settle_calls
from escrowmq_client.worker.ending import Ending
from escrowmq_client.worker.outcomes import Ack, Bury, DeadLetter, Nack, RetryLater, outcome_of

SERVER_TIME = datetime(2026, 3, 2, tzinfo=UTC)
LEASE_MS = 30_000
LEASE_EXPIRED = Problem(
    type="/problems/lease_expired",
    title="Lease expired",
    status=409,
    code="lease_expired",
    detail="",
    retryable=False,
)


def book(*, is_ordered: bool = False, **options) -> Book:
    return Book(WorkerOptions(**{"concurrency": 3, **options}), is_ordered)


def received(*names: str, key: str | None = None) -> ReceivedMessages:
    messages = [
        ReceivedMessage(
            message_id=name,
            topic="orders",
            queue_id=0,
            queue_offset=0,
            payload="1",
            payload_encoding="utf8",
            properties={},
            born_at=SERVER_TIME,
            stored_at=SERVER_TIME,
            ordering_key=key,
            attempt=1,
            receipt_handle=f"lh_{name}",
            lease_expires_at=SERVER_TIME + timedelta(milliseconds=LEASE_MS),
        )
        for name in names
    ]
    return ReceivedMessages(server_time=SERVER_TIME, messages=messages)


def names(leases: list[Lease]) -> list[str]:
    return [lease.message.message_id for lease in leases]


def unprocessed_of(call: Call[SettleResults]) -> list[bool]:
    """Of each entry of a nack."""
    return [entry.get("unprocessed", False) for entry in json.loads(call.body)["entries"]]


def accepted(leases: list[Lease]) -> list[SettleResult]:
    return [SettleResult(receipt_handle=lease.handle, status=200) for lease in leases]


def extended(leases: list[Lease], now_ms: float) -> list[SettleResult]:
    expires_at = SERVER_TIME + timedelta(milliseconds=now_ms + LEASE_MS)
    return [
        SettleResult(receipt_handle=lease.handle, status=200, lease_expires_at=expires_at)
        for lease in leases
    ]


def refused(leases: list[Lease]) -> list[SettleResult]:
    return [
        SettleResult(receipt_handle=lease.handle, status=409, problem=LEASE_EXPIRED)
        for lease in leases
    ]


def settle_all(held: Book, now_ms: float) -> list[str]:
    batch = held.to_settle(now_ms)
    held.settled(batch, accepted(batch))
    return names(batch)


def test_no_more_is_received_than_can_start_now():
    held = book()
    assert held.free == 3
    held.receive(received("a", "b"), 0)
    assert held.free == 1

    first, _ = held.start()
    held.finish(first, Ack(), 10)

    assert held.free == 2


def test_a_handler_of_a_lost_message_takes_its_place_until_it_ends():
    held = book(extend=False)
    held.receive(received("a", "b", "c"), 0)
    first, *_ = held.start()

    assert len(held.lose_overdue(LEASE_MS)) == 3
    assert held.free == 0
    held.finish(first, Ack(), LEASE_MS + 1)

    assert held.free == 1
    assert held.to_settle(1e9) == []


def test_a_lease_is_extended_when_a_third_of_it_has_passed_and_again():
    held = book()
    held.receive(received("a"), 0)
    (lease,) = held.start()
    assert held.next_extension_ms() == LEASE_MS / 3
    assert held.to_extend(LEASE_MS / 3 - 1) == []

    assert held.to_extend(LEASE_MS / 3) == [lease]
    held.extended([lease], extended([lease], 10_000), 10_000)

    assert held.next_extension_ms() == 20_000
    assert held.next_loss_ms() == 10_000 + LEASE_MS
    assert held.lose_overdue(LEASE_MS) == []
    assert held.stats.extended == 1


def test_what_is_left_of_a_lease_is_what_counts():
    """As after a lost answer of a receive, which the service repeats later."""
    answer = received("a")
    held = book()
    held.receive(structs.replace(answer, server_time=SERVER_TIME + timedelta(seconds=21)), 50_000)
    (lease,) = held.start()
    assert (held.next_extension_ms(), held.next_loss_ms()) == (53_000, 59_000)

    # 30 s from then: by the clock of the service, 24 s after the receive
    expires_at = SERVER_TIME + timedelta(seconds=54)
    result = SettleResult(receipt_handle=lease.handle, status=200, lease_expires_at=expires_at)
    held.extended([lease], [result], 53_000)

    assert (held.next_extension_ms(), held.next_loss_ms()) == (63_000, 83_000)


def test_a_message_that_waits_for_its_settlement_is_extended_too():
    held = book(ack_batch_ms=60_000)
    held.receive(received("a"), 0)
    (lease,) = held.start()
    held.finish(lease, Ack(), 1)

    assert held.to_extend(10_000) == [lease]


def test_a_lease_is_extended_for_so_long_and_then_it_is_lost():
    held = book(max_lease_ms=60_000)
    held.receive(received("a"), 0)
    (lease,) = held.start()
    now_ms = 0.0
    while (now_ms := held.next_extension_ms()) != float("inf"):
        held.extended([lease], extended([lease], now_ms), now_ms)

    assert 50_000 <= lease.ends_ms <= 60_000
    assert names(held.lose_overdue(lease.ends_ms)) == ["a"]


def test_a_refused_extension_loses_the_message_and_nothing_is_settled():
    held = book()
    held.receive(received("a"), 0)
    (lease,) = held.start()
    message = message_of(lease)
    assert not message.lost

    assert held.extended([lease], refused([lease]), 10_000) == [lease]
    held.finish(lease, Ack(), 11_000)

    assert message.lost
    assert held.is_empty
    assert held.stats.lost == 1


def test_a_refused_extension_of_what_was_acknowledged_meanwhile_is_no_loss():
    held = book()
    held.receive(received("a"), 0)
    (lease,) = held.start()
    held.to_extend(10_000)
    held.finish(lease, Ack(), 10_000)
    assert settle_all(held, 10_020) == ["a"]

    assert held.extended([lease], refused([lease]), 10_000) == []
    assert (held.stats.acked, held.stats.lost) == (1, 0)


def test_an_extension_that_is_refused_while_its_message_is_settled_is_not_repeated():
    held = book()
    held.receive(received("a"), 0)
    (lease,) = held.start()
    held.finish(lease, Ack(), 9_900)
    batch = held.to_settle(9_990)
    assert held.to_extend(10_000) == [lease]

    assert held.extended([lease], refused([lease]), 10_000) == []

    assert held.to_extend(10_001) == []
    assert held.next_extension_ms() == inf
    held.not_settled(batch, 20_000)
    assert names(held.lose_overdue(LEASE_MS)) == ["a"]


def test_a_service_that_cannot_be_reached_is_asked_again_before_the_lease_ends():
    held = book()
    held.receive(received("a"), 0)
    leases = held.to_extend(10_000)

    held.not_extended(leases, 15_000)

    assert held.next_extension_ms() == 18_000


def test_acknowledgements_wait_for_others_a_moment():
    held = book(ack_batch_ms=20)
    held.receive(received("a", "b"), 0)
    first, second = held.start()
    held.finish(first, Ack(), 100)
    assert held.to_settle(119) == []
    held.finish(second, Ack(), 119)

    assert held.next_settlement_ms() == 120
    assert settle_all(held, 120) == ["a", "b"]
    assert held.is_empty


def test_each_kind_of_outcome_is_one_call():
    held = book(concurrency=5)
    held.receive(received("a", "b", "c", "d", "e"), 0)
    outcomes = [
        outcome_of(None),
        outcome_of(RetryLater(5_000)),
        outcome_of(DeadLetter("bad")),
        outcome_of(ValueError("no")),
        outcome_of(None),
    ]
    for lease, outcome in zip(held.start(), outcomes, strict=True):
        held.finish(lease, outcome, 0)

    calls = settle_calls("billing", held.to_settle(20))

    assert [(call.operation, names(leases)) for call, leases in calls] == [
        ("ackMessages", ["a", "e"]),
        ("nackMessages", ["b", "d"]),
        ("deadLetterMessages", ["c"]),
    ]
    assert outcomes == [
        Ack(), Nack(5_000, None), Bury("bad"), Nack(None, "ValueError: no"), Ack(),
    ]  # fmt: skip
    for _, leases in calls:
        held.settled(leases, accepted(leases))
    assert (held.stats.acked, held.stats.nacked, held.stats.dead_lettered) == (2, 2, 1)


def test_a_refused_settlement_is_counted_and_returned():
    held = book()
    held.receive(received("a", "b"), 0)
    for lease in held.start():
        held.finish(lease, Ack(), 0)
    first, second = held.to_settle(20)

    lost = held.settled([first, second], [*refused([first]), *accepted([second])])

    assert lost == [(first, LEASE_EXPIRED)]
    assert (held.stats.acked, held.stats.lost) == (1, 1)


def test_a_settlement_without_an_answer_is_sent_again():
    held = book()
    held.receive(received("a"), 0)
    (lease,) = held.start()
    held.finish(lease, Ack(), 0)
    batch = held.to_settle(20)

    held.not_settled(batch, 5_000)

    assert held.to_settle(5_999) == []
    assert held.to_settle(6_000) == [lease]


def test_a_stop_gives_back_what_has_not_begun_and_lets_the_rest_finish():
    held = book(is_ordered=True)
    held.receive(received("a", "b", key="k"), 0)
    (first,) = held.start()

    held.stop(1_000)

    assert held.free == 0
    ((call, leases),) = settle_calls("billing", held.to_settle(1_000))
    assert (call.operation, names(leases)) == ("nackMessages", ["b"])
    assert b'"delay_ms":0' in call.body
    assert unprocessed_of(call) == [True]
    held.settled(leases, accepted(leases))
    assert held.to_extend(10_000) == [first]
    held.finish(first, Ack(), 11_000)
    assert settle_all(held, 11_000) == ["a"]
    assert held.is_empty


def test_what_does_not_finish_in_time_is_given_back():
    held = book()
    held.receive(received("a"), 0)
    (lease,) = held.start()
    held.stop(1_000)

    assert held.give_up(26_000) == [lease]
    held.finish(lease, Ack(), 26_001)

    ((call, _),) = settle_calls("billing", held.to_settle(26_001))
    assert call.operation == "nackMessages"
    assert unprocessed_of(call) == [False], "its handler ran: the attempt counts"


def test_what_is_received_after_the_stop_is_given_back():
    held = book()
    held.stop(0)
    held.receive(received("a"), 10)

    assert held.start() == []
    ((call, leases),) = settle_calls("billing", held.to_settle(10))
    assert names(leases) == ["a"]
    assert unprocessed_of(call) == [True]


def test_an_ordered_group_handles_one_message_of_a_key_at_a_time():
    held = book(is_ordered=True, concurrency=10)
    held.receive(received("a1", "a2", key="a"), 0)
    held.receive(received("b1", key="b"), 0)
    held.receive(received("q1", "q2"), 0)  # without a key: by their queue

    first, *others = held.start()
    assert names([first, *others]) == ["a1", "b1", "q1"]
    held.finish(first, Ack(), 5)
    assert held.start() == []  # its acknowledgement may be refused

    assert settle_all(held, 5) == ["a1"]
    assert names(held.start()) == ["a2"]


def test_a_later_message_of_a_key_does_not_overtake_a_rejected_one():
    held = book(is_ordered=True)
    held.receive(received("a1", "a2", "a3", key="a"), 0)
    (first,) = held.start()

    held.finish(first, Nack(5_000, "db down"), 5)

    assert held.start() == []
    ((call, leases),) = settle_calls("billing", held.to_settle(5))
    assert (call.operation, names(leases)) == ("nackMessages", ["a1", "a2", "a3"])
    assert unprocessed_of(call) == [False, True, True]


def test_a_later_message_of_a_key_does_not_overtake_a_lost_one():
    held = book(is_ordered=True)
    held.receive(received("a1", "a2", key="a"), 0)
    (first,) = held.start()

    held.extended([first], refused([first]), 10_000)

    assert held.start() == []
    assert names(held.to_settle(10_000)) == ["a2"]


def test_a_group_without_order_handles_messages_of_a_key_together():
    held = book()
    held.receive(received("a1", "a2", key="a"), 0)

    assert names(held.start()) == ["a1", "a2"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["receive", "start", "finish", "extend", "settle", "pass", "stop"]),
        st.integers(1, 20_000),
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS, st.booleans())
def test_no_message_is_forgotten_whatever_happens(steps, is_ordered):
    """Each message that was received is settled once or lost, and never both."""
    held, now_ms, count = book(is_ordered=is_ordered), 0.0, 0
    running: list[Lease] = []
    for step, how_long_ms, is_good in steps:
        answer = accepted if is_good else refused
        if step == "receive":
            more = [f"m{count + n}" for n in range(min(2, held.free))]
            count += len(more)
            held.receive(received(*more, key="k" if is_good else None), now_ms)
        elif step == "start":
            running += held.start()
            assert len(running) <= 3
        elif step == "finish" and running:
            held.finish(running.pop(0), Ack() if is_good else Nack(None, None), now_ms)
        elif step == "extend":
            leases = held.to_extend(now_ms)
            results = extended(leases, now_ms) if is_good else refused(leases)
            held.extended(leases, results, now_ms)
        elif step == "settle":
            leases = held.to_settle(now_ms)
            held.settled(leases, answer(leases))
        elif step == "stop":
            held.stop(now_ms)
        now_ms += how_long_ms if step == "pass" else 0
        held.lose_overdue(now_ms)

    held.stop(now_ms)
    held.give_up(now_ms)
    leases = held.to_settle(inf)  # whatever waits for others to be settled together
    held.settled(leases, accepted(leases))

    stats = held.stats
    assert held.is_empty
    assert stats.received == count == stats.acked + stats.nacked + stats.dead_lettered + stats.lost


def test_nothing_is_given_back_while_a_receive_is_under_way_but_not_for_ever():
    held = book(is_ordered=True)
    held.receive(received("running", "waiting", key="k"), 0)
    held.start()
    ending = Ending(held)

    ending.begin(100)
    assert ending.give_back(100, is_receiving=True, at_once=True) == []
    assert held.to_settle(100) == []
    assert ending.next_ms() == 2_100

    given_up = ending.give_back(2_100, is_receiving=True, at_once=False)
    assert given_up == []
    assert names(held.to_settle(2_100)) == ["waiting"]


def test_a_handler_is_given_up_when_its_time_is_over_and_the_worker_leaves_soon_after():
    held = book(shutdown_ms=25_000)
    held.receive(received("running"), 0)
    held.start()
    ending = Ending(held)

    ending.begin(0)
    assert ending.give_back(0, is_receiving=False, at_once=False) == []
    assert ending.next_ms() == 25_000
    assert names(ending.give_back(25_000, is_receiving=False, at_once=False)) == ["running"]
    assert not ending.is_over(25_000)
    assert ending.is_over(27_000)


def test_a_second_stop_gives_back_at_once():
    held = book()
    held.receive(received("running"), 0)
    held.start()
    ending = Ending(held)

    ending.begin(0)
    assert names(ending.give_back(1, is_receiving=False, at_once=True)) == ["running"]
    batch = held.to_settle(1)
    held.settled(batch, accepted(batch))
    assert ending.is_over(1)


def test_what_has_not_begun_when_handlers_have_no_more_time_keeps_its_attempt():
    for shutdown_ms, at_once in ((25_000, True), (0, False)):
        held = book(shutdown_ms=shutdown_ms)
        ending = Ending(held)
        ending.begin(0)
        assert ending.give_back(0, is_receiving=True, at_once=at_once) == []
        held.receive(received("late"), 1)  # by the receive that was under way

        assert ending.start(1, at_once=at_once) == []
        assert ending.give_back(1, is_receiving=False, at_once=at_once) == []

        ((call, leases),) = settle_calls("billing", held.to_settle(1))
        assert names(leases) == ["late"]
        assert unprocessed_of(call) == [True]


def test_what_a_receive_still_brings_after_a_stop_is_started_while_there_is_time():
    held = book(shutdown_ms=25_000)
    ending = Ending(held)
    ending.begin(0)
    held.receive(received("late"), 1)

    assert names(ending.start(1, at_once=False)) == ["late"]
