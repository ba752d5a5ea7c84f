"""The share of a member: what it owns after each answer."""

from datetime import UTC, datetime

from escrowmq_client.member.share import MOST_PULLS, MemberOptions, Share
from escrowmq_client.models.groups import (
    Filter,
    Group,
    OffsetInput,
    Subscription,
    SubscriptionInput,
)
from escrowmq_client.models.members import (
    Heartbeat,
    LockResult,
    Membership,
    OwnedQueue,
    QueueName,
    QueueOfTopic,
)

LATER = datetime(2026, 3, 2, tzinfo=UTC)


def share_of(offsets: dict[int, int], **options) -> Share:
    given = {"topics": ["orders"], **options}
    share = Share("billing", MemberOptions(client_id="c", is_id_given=False, **given))
    share.joined(
        Membership(
            member_id="mem_1",
            generation=1,
            heartbeat_interval_ms=30_000,
            expires_at=LATER,
            assignment=owned(offsets),
        ),
        0,
    )
    return share


def owned(offsets: dict[int, int]) -> list[OwnedQueue]:
    return [OwnedQueue(topic="orders", queue_id=n, offset=at) for n, at in offsets.items()]


def rules(*topics: str) -> Group:
    return Group(
        group="billing",
        topics=[
            Subscription(topic=one, filter=Filter(kind="tag", expression="*")) for one in topics
        ],
        start="earliest",
        lease_ms=30_000,
        max_attempts=4,
        backoff_ms=[1_000],
        dead_letter=True,
        ordered=False,
        session_timeout_ms=120_000,
        queue_rooms={},
        created_at=LATER,
        revision=1,
    )


def beat(share: Share, offsets: dict[int, int], refused: list[int] | None = None):
    sent = share.to_commit()
    answer = Heartbeat(
        generation=2,
        assignment=owned(offsets),
        revoked=[],
        refused=None
        if refused is None
        else [QueueOfTopic(topic="orders", queue_id=n) for n in refused],
        expires_at=LATER,
    )
    return share.beaten(answer, sent, 0)


def test_a_topic_whose_queues_all_went_is_looked_for_until_one_comes_back():
    share = share_of({0: 0, 1: 0})
    beat(share, {1: 0})
    assert not share.has_lost_topic

    beat(share, {})
    beat(share, {})
    assert share.has_lost_topic

    beat(share, {0: 0})
    assert not share.has_lost_topic


def test_a_topic_that_the_group_has_stopped_to_read_is_found_once_each_time():
    share = share_of({0: 0}, topics=["orders", SubscriptionInput("other")])

    assert share.newly_unread(rules("orders", "other")) == []
    assert share.newly_unread(rules("other")) == ["orders"]
    assert share.newly_unread(rules()) == ["other"]
    assert share.newly_unread(rules("orders")) == []
    assert share.newly_unread(rules()) == ["orders"]


def test_an_offset_is_committed_once():
    share = share_of({0: 5})
    share.parts[QueueName("orders", 0)].offset = 7
    assert share.to_commit() == [OffsetInput("orders", 0, 7)]

    assert beat(share, {0: 5}) == []

    assert share.to_commit() == []
    assert share.generation == 2


def test_a_queue_that_another_member_had_meanwhile_begins_where_that_one_was():
    share = share_of({0: 5, 1: 5})
    before = share.parts[QueueName("orders", 0)]
    before.offset = 7

    (begun,) = beat(share, {0: 9, 1: 5}, refused=[0])

    assert before.is_lost
    assert not before.may_handle(0)
    assert (begun.queue, begun.offset) == (QueueName("orders", 0), 9)
    assert share.to_commit() == []


def test_a_queue_that_is_not_in_the_assignment_is_lost():
    share = share_of({0: 5, 1: 5})
    lost = share.parts[QueueName("orders", 1)]

    beat(share, {0: 5})

    assert lost.is_lost
    assert list(share.parts) == [QueueName("orders", 0)]


def test_a_queue_is_handled_for_a_while_after_its_lock_was_renewed():
    share = share_of({0: 5}, lock=True)
    part = share.parts[QueueName("orders", 0)]
    assert not part.may_handle(0)

    queue = QueueOfTopic(topic="orders", queue_id=0)
    share.locked(LockResult(locked=[queue], refused=[], lock_expires_at=LATER), 1_000)

    assert part.may_handle(20_999)
    assert not part.may_handle(21_000)


def test_a_session_that_the_service_did_not_renew_ends_with_all_queues():
    share = share_of({0: 5}, session_timeout_ms=10_000)
    part = share.parts[QueueName("orders", 0)]
    assert not share.has_expired(9_999)
    assert share.has_expired(10_000)

    share.end()

    assert part.is_lost
    assert not share.is_member


def test_each_of_many_queues_has_its_pull_within_the_wait():
    assert share_of(dict.fromkeys(range(MOST_PULLS), 0)).pull_wait_ms == 5_000
    assert share_of(dict.fromkeys(range(10 * MOST_PULLS), 0)).pull_wait_ms == 500
