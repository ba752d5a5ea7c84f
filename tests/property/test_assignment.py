"""Whatever members and queues a group has: each queue has one owner, the shares are even, and a
sticky assignment moves no more queues than it must.
"""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.members.assignment import Candidate, Strategy, assign
from storage.message import QueueId

TOPICS = ["orders", "payments", "refunds"]
ROOMS = ["east", "west"]
EVEN_IN_A_TOPIC = [Strategy.AVERAGE, Strategy.CIRCLE]
FOR_ALL_QUEUES = [strategy for strategy in Strategy if strategy is not Strategy.MANUAL]


def queues_of(**counts: int) -> list[QueueId]:
    return [QueueId(topic, number) for topic, count in counts.items() for number in range(count)]


@st.composite
def groups(draw, most_members=7, most_queues=12, topics=None):
    """(members, queues, rooms of queues); each member reads one topic or more, and may own queues
    that it does not read any more.
    """
    queues = queues_of(**{topic: draw(st.integers(0, most_queues)) for topic in TOPICS})
    owners = draw(
        st.lists(st.integers(0, most_members), min_size=len(queues), max_size=len(queues))
    )

    def member(number: int) -> Candidate:
        return Candidate(
            member_id=f"mem_{number}",
            client_id=f"client-{draw(st.integers(0, 3))}",
            topics=topics or draw(st.sets(st.sampled_from(TOPICS), min_size=1)),
            owned=[q for q, owner in zip(queues, owners, strict=True) if owner == number],
            named=draw(st.lists(st.sampled_from(queues), max_size=5)) if queues else [],
            room=draw(st.sampled_from([*ROOMS, None])),
        )

    members = [member(number) for number in range(draw(st.integers(1, most_members)))]
    rooms = {q: draw(st.sampled_from([*ROOMS, "north"])) for q in queues if draw(st.booleans())}
    return members, queues, rooms


def readers_of(members, topic):
    return [member.member_id for member in members if topic in member.topics]


def spread(owned, members, queues):
    """The largest number of these queues that a member owns, less the smallest."""
    counts = [len(set(owned[member]) & set(queues)) for member in members]
    return max(counts) - min(counts)


@pytest.mark.parametrize("strategy", FOR_ALL_QUEUES)
@given(group=groups())
def test_each_queue_that_someone_reads_has_one_owner_who_reads_it(strategy, group):
    members, queues, rooms = group

    owned = assign(strategy, members, queues, rooms)

    owners = Counter(queue for its_queues in owned.values() for queue in its_queues)
    assert owners == Counter(q for q in queues if readers_of(members, q.topic))
    for member in members:
        assert {queue.topic for queue in owned[member.member_id]} <= set(member.topics)


@given(group=groups())
def test_by_hand_a_queue_goes_to_the_first_member_that_names_and_reads_it(group):
    members, queues, _ = group

    owned = assign(Strategy.MANUAL, members, queues)

    for queue in queues:
        wanting = [m.member_id for m in members if queue in m.named and queue.topic in m.topics]
        assert [member for member in owned if queue in owned[member]] == wanting[:1]


@pytest.mark.parametrize("strategy", EVEN_IN_A_TOPIC)
@given(group=groups())
def test_the_shares_of_a_topic_differ_by_one_queue_at_most(strategy, group):
    members, queues, _ = group

    owned = assign(strategy, members, queues)

    for topic in TOPICS:
        if readers := readers_of(members, topic):
            assert spread(owned, readers, [q for q in queues if q.topic == topic]) <= 1


@given(group=groups(topics=TOPICS))
def test_sticky_shares_of_all_topics_together_differ_by_one_queue_at_most(group):
    members, queues, _ = group

    owned = assign(Strategy.STICKY, members, queues)

    assert spread(owned, owned, queues) <= 1


@given(group=groups(most_members=3, most_queues=2, topics=TOPICS))
def test_no_even_assignment_moves_fewer_queues_than_a_sticky_one(group):
    members, queues, _ = group

    owned = assign(Strategy.STICKY, members, queues)

    ids = [member.member_id for member in members]
    before = {queue: member.member_id for member in members for queue in member.owned}
    each, more = divmod(len(queues), len(ids))
    even = sorted([each] * (len(ids) - more) + [each + 1] * more)
    fewest = min(
        sum(before.get(queue, owner) != owner for queue, owner in zip(queues, owners, strict=True))
        for owners in product(ids, repeat=len(queues))
        if sorted(owners.count(member) for member in ids) == even
    )
    moved = [
        queue
        for member, its_queues in owned.items()
        for queue in its_queues
        if before.get(queue, member) != member
    ]
    assert len(moved) == fewest


@given(group=groups())
def test_what_is_sticky_moves_nothing_when_nothing_has_changed(group):
    members, queues, _ = group
    owned = assign(Strategy.STICKY, members, queues)

    again = [member._replace(owned=owned[member.member_id]) for member in members]

    assert assign(Strategy.STICKY, again, queues) == owned


@given(group=groups())
def test_queues_of_a_room_stay_in_it_while_a_reader_is_there(group):
    members, queues, rooms = group

    owned = assign(Strategy.MACHINE_ROOM, members, queues, rooms)

    room_of = {member.member_id: member.room for member in members}
    for member, its_queues in owned.items():
        for queue in its_queues:
            neighbours = [
                m for m in readers_of(members, queue.topic) if room_of[m] == rooms.get(queue)
            ]
            if queue in rooms and neighbours:
                assert member in neighbours
    for topic, room in product(TOPICS, ROOMS):
        neighbours = [m for m in readers_of(members, topic) if room_of[m] == room]
        if neighbours:
            here = [q for q in queues if q.topic == topic and rooms.get(q) == room]
            assert spread(owned, neighbours, here) <= 1


@pytest.mark.parametrize("strategy", FOR_ALL_QUEUES)
@given(group=groups(), data=st.data())
def test_the_order_of_joining_decides_nothing_but_by_hand(strategy, group, data):
    members, queues, rooms = group

    shuffled = data.draw(st.permutations(members))

    assert assign(strategy, shuffled, queues, rooms) == assign(strategy, members, queues, rooms)


@pytest.mark.parametrize(
    ("strategy", "queues", "members", "expected"),
    [
        # RocketMQ's own shares (facts 11.6)
        (Strategy.AVERAGE, 8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (Strategy.AVERAGE, 2, 3, [[0], [1], []]),
        (Strategy.CIRCLE, 8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (Strategy.CIRCLE, 2, 3, [[0], [1], []]),
    ],
)
def test_average_and_circle_share_as_rocketmq(strategy, queues, members, expected):
    joined = [Candidate(f"mem_{n}", f"client-{n}", ["orders"]) for n in range(members)]

    owned = assign(strategy, joined, queues_of(orders=queues))

    assert [[queue.number for queue in its_queues] for its_queues in owned.values()] == expected
