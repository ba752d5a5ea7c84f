"""Where groups of a service continue, by the offsets of a broker with the same queues."""

import pytest

from app.store_moves.offset_moves import (
    NotComparable,
    Outcome,
    of_clients,
    plan_moves,
    same_end,
    to_compare,
    to_set,
    to_subscribe,
)
from storage.formats.consumer_offsets import GroupQueue
from storage.message import OffsetRange, QueueId

BOUNDS = {QueueId("orders", 0): OffsetRange(10, 50), QueueId("orders", 1): OffsetRange(0, 0)}


@pytest.mark.parametrize(
    ("place", "offset", "current", "outcome", "to_offset"),
    [
        (("billing", "orders", 0), 30, None, Outcome.ADVANCED, 30),
        (("billing", "orders", 0), 30, 20, Outcome.ADVANCED, 30),
        (("billing", "orders", 0), 50, 20, Outcome.ADVANCED, 50),
        (("billing", "orders", 0), 30, 30, Outcome.UNCHANGED, 30),
        (("billing", "orders", 0), 30, 40, Outcome.UNCHANGED, 40),
        (("billing", "orders", 0), 5, None, Outcome.EXPIRED, 10),
        (("billing", "orders", 0), 5, 10, Outcome.UNCHANGED, 10),
        (("billing", "orders", 0), 51, 20, Outcome.BEYOND_END, 50),
        (("billing", "orders", 0), 51, 50, Outcome.BEYOND_END, 50),
        (("billing", "orders", 1), 0, None, Outcome.ADVANCED, 0),
        (("billing", "orders", 2), 3, None, Outcome.QUEUE_NOT_FOUND, None),
        (("billing", "bills", 0), 3, None, Outcome.TOPIC_NOT_FOUND, None),
        (("a|b", "orders", 0), 30, None, Outcome.NAME_NOT_ALLOWED, None),
        (("billing", "%RETRY%billing", 0), 3, None, Outcome.RETRIES, None),
    ],
)
def test_each_offset_of_the_broker_has_an_outcome(place, offset, current, outcome, to_offset):
    group_queue = GroupQueue(*place)
    known = {} if current is None else {group_queue: current}

    (move,) = plan_moves({group_queue: offset}, BOUNDS, known)

    assert (move.outcome, move.to_offset) == (outcome, to_offset)
    assert bool(to_set([move])) == (to_offset is not None and to_offset != current)


def test_the_groups_of_the_broker_itself_are_left_out():
    offsets = {GroupQueue("billing", "orders", 0): 1, GroupQueue("CID_RMQ_SYS_TRANS", "x", 0): 2}

    assert of_clients(offsets, []) == {GroupQueue("billing", "orders", 0): 1}


def test_a_group_that_was_asked_for_and_has_no_offset_is_reported():
    offsets = {GroupQueue("billing", "orders", 0): 30, GroupQueue("audit", "orders", 0): 30}

    found = of_clients(offsets, ["billing", "mail"])
    moves = plan_moves(found, BOUNDS, {}, ["billing", "mail"])

    assert [(move.group, move.outcome) for move in moves] == [
        ("billing", Outcome.ADVANCED),
        ("mail", Outcome.GROUP_NOT_FOUND),
    ]


def test_groups_without_subscriptions_get_the_topics_in_which_they_continue():
    places = {
        GroupQueue("new", "orders", 1): 0,
        GroupQueue("new", "%RETRY%new", 0): 3,
        GroupQueue("new", "bills", 0): 3,  # unknown to the service
        GroupQueue("further", "orders", 0): 30,  # than the broker
        GroupQueue("reading", "orders", 0): 30,
    }
    moves = plan_moves(places, BOUNDS, {GroupQueue("further", "orders", 0): 40})

    assert to_subscribe(moves, {"reading"}) == {"new": ["orders"], "further": ["orders"]}


@pytest.mark.parametrize(
    ("offset", "current", "same", "outcome", "to_offset"),
    [
        (30, None, 30, Outcome.ADVANCED, 30),
        (30, None, 29, Outcome.OTHER_MESSAGES, 29),
        (30, 20, 10, Outcome.OTHER_MESSAGES, 20),
        (30, None, None, Outcome.NOT_COMPARED, None),
        (30, 30, 12, Outcome.UNCHANGED, 30),  # nothing is skipped by what is not set
        (60, None, 50, Outcome.BEYOND_END, 50),
        (60, None, 49, Outcome.OTHER_MESSAGES, 49),
        (10, None, None, Outcome.ADVANCED, 10),  # no message of the service is in front
        (5, None, None, Outcome.EXPIRED, 10),
    ],
)
def test_an_offset_is_set_as_far_as_both_sides_have_the_same(
    offset, current, same, outcome, to_offset
):
    place = GroupQueue("billing", "orders", 0)
    known = {} if current is None else {place: current}
    queues = to_compare({place: offset}, BOUNDS)

    (move,) = plan_moves({place: offset}, BOUNDS, known, same_ends=dict.fromkeys(queues, same))

    assert (move.outcome, move.to_offset) == (outcome, to_offset)
    assert move.differs_from == (same if outcome is Outcome.OTHER_MESSAGES else None)


FIRST_40 = range(40)


@pytest.mark.parametrize(
    ("broker", "service", "offset", "same"),
    [
        ((0, 40), (0, 60), 40, 40),  # the service alone has more
        ((0, 90), (0, 90), 80, 40),  # both have more: they are the same up to 40
        ((0, 90), (0, 90), 30, 30),
        ((0, 90), (0, 20), 80, 20),
        ((0, 90), (40, 90), 80, 40),  # expired at the service: its begin differs already
        ((39, 90), (0, 90), 80, 40),
        ((40, 90), (0, 90), 80, None),  # expired at the broker: what was before is unknown
        ((20, 90), (0, 90), 10, 21),  # expired at the broker, but the next one is the same
        ((50, 50), (0, 60), 50, None),
        ((0, 0), (0, 60), 50, None),
    ],
)
def test_the_common_begin_of_a_queue_is_found(broker, service, offset, same):
    found = same_end(OffsetRange(*broker), OffsetRange(*service), offset, FIRST_40.__contains__)

    assert found == same


def test_a_message_that_one_side_cannot_give_is_not_compared():
    def is_same(_: int) -> bool:
        raise NotComparable("damaged")

    assert same_end(OffsetRange(0, 90), OffsetRange(0, 90), 80, is_same) is None
