"""Findings of an import about a broker's store."""

from app.hand_over.found import Note
from app.store_moves.broker_findings import not_kept, twice
from app.store_moves.report import Finding, found_only
from app.store_moves.store_folder import Listing
from storage.message import OffsetRange, QueueId


def codes(findings: list[Finding]) -> dict[str, tuple[int, list[str]]]:
    return {one.code: (one.count, one.names) for one in findings}


def test_what_is_not_kept_is_named_and_the_same_of_several_is_one_finding():
    what = "no offset in the store"
    notes = [Note("group", "b", what), Note("group", "a", what), Note("topic", "t", "ordered")]
    files = [
        f"consumequeue/%LMQ%mine/0/{0:020}", "kvStore/CURRENT",
        f"compaction/compactionLog/prices/0/{0:020}"
    ]  # fmt: skip
    bounds = {
        QueueId("DefaultCluster_REPLY_TOPIC", 0): OffsetRange(2, 5),
        QueueId("RMQ_SYS_TRACE_TOPIC", 0): OffsetRange(0, 7),
        QueueId("orders", 0): OffsetRange(0, 9),
    }

    found = found_only(not_kept(notes, Listing(dict.fromkeys(files, 1), []), bounds))

    assert codes(found) == {
        "group_setting": (2, ["a", "b"]),
        "topic_setting": (1, ["t"]),
        "replies": (3, ["DefaultCluster_REPLY_TOPIC"]),
        "traces": (7, ["RMQ_SYS_TRACE_TOPIC"]),
        "light_queues": (1, ["%LMQ%mine"]),
        "compacted_topics": (1, ["prices"]),
        "pop_database": (1, ["kvStore"]),
    }


def test_an_ordinary_store_has_nothing_to_say():
    listing = Listing({"compaction/position-checkpoint": 1}, [])

    assert found_only(not_kept([], listing, {QueueId("orders", 0): OffsetRange(0, 9)})) == []
    assert found_only(twice(listing, ["billing"])) == []


def test_groups_of_a_killed_broker_may_see_messages_twice():
    assert codes(list(twice(Listing({"abort": 0}, []), ["billing"]))) == {
        "broker_was_killed": (1, ["billing"])
    }
