"""Whoever stands where there is nothing is found, in a broker's files and in our own log; who only
fell behind is counted.
"""

from pathlib import Path

import pytest

from audit.checks.run import Asked
from delivery.leases import events
from storage.formats import checkpoint, delay_progress
from storage.local.queues import group_offsets
from storage.message import QueueId
from tests.audit.test_checks import checked, counts_of
from tests.audit.test_outcomes import BROKERS, unpacked
from tests.support.builders import ORDERS, message
from tests.support.written_log import WrittenLog

POSITIONS = Asked(("positions",))


def replaced(path: Path, old: bytes, new: bytes) -> None:
    raw = path.read_bytes()
    assert raw.count(old) == 1
    path.write_bytes(raw.replace(old, new))


@pytest.mark.faults
def test_a_brokers_files_that_say_more_than_its_log_has_are_found_one_by_one(spark, tmp_path):
    store = unpacked(BROKERS / "public-1.tar.xz", tmp_path)
    config = store / "config"
    # Each queue of these ends where the group stands: one further is nowhere.
    replaced(config / "consumerOffset.json", b"{0:24,1:20,2:18,3:28", b"{0:25,1:20,2:-1,3:0")
    replaced(config / "delayOffset.json", b"{1:15,2:7,", b"{1:16,2:7,")
    (config / "timercheck").write_bytes(delay_progress.encode_timercheck(10, counter=1, now_ms=0))
    page = (store / "checkpoint").read_bytes()
    fields = checkpoint.decode_fields(page)
    stated = fields._replace(physic_ms=fields.physic_ms + 1, master_flushed=1 << 20)
    (store / "checkpoint").write_bytes(
        checkpoint.encode_fields(stated) + page[checkpoint.FIELDS_BYTES :]
    )

    found = checked(spark, store, POSITIONS)

    assert counts_of(found) == {
        "position_outside": 2,
        "delay_position_outside": 2,
        "checkpoint_ahead": 2,
    }
    items = found["positions"].items
    outside = [
        (item["queue_id"], item["position"], item["end"])
        for item in items
        if item["verdict"] == "position_outside"
    ]
    assert outside == [(0, 25, 24), (2, -1, 18)]
    delays = [
        (item["topic"], item["position"], item["end"])
        for item in items
        if item["verdict"] == "delay_position_outside"
    ]
    assert delays == [("SCHEDULE_TOPIC_XXXX", 16, 15), ("rmq_sys_wheel_timer", 10, 9)]
    assert [item["field"] for item in items if item["verdict"] == "checkpoint_ahead"] == [
        "physic_ms",
        "master_flushed",
    ]


@pytest.mark.faults
def test_a_file_of_positions_that_cannot_be_read_is_a_finding_that_names_it(spark, tmp_path):
    store = unpacked(BROKERS / "public-1.tar.xz", tmp_path)
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store / "config" / name).write_bytes(b"\0" * 100)

    found = checked(spark, store, POSITIONS)

    assert counts_of(found) == {"positions_unreadable": 1}
    assert found["positions"].items == [
        {"verdict": "positions_unreadable", "file": "config/consumerOffset.json"}
    ]


def test_in_a_log_that_begins_late_a_group_may_have_fallen_behind_and_of_an_empty_queue_nobody_knows(
    spark, tmp_path
):
    log = WrittenLog(tmp_path / "store", first_offset=1 << 20)
    log.queue_ends[ORDERS] = 10
    log.append(message())
    again = QueueId("deleted_and_created_again", 0)
    log.append(
        group_offsets.commit_message("ended", again, 4, message_id="msg_ended", now_ms=log.now_ms)
    )
    skipped = events.Skip(*again, 4, 1, "age")
    log.append(
        events.event_message(events.Skipped(group="pulls now", runs=[skipped]), now_ms=log.now_ms)
    )
    log.append(
        group_offsets.deletion_message(again.topic, message_id="msg_deleted", now_ms=log.now_ms)
    )
    log.queue_ends[again] = 10
    log.append(message(queue=again))
    log.append(
        group_offsets.commit_message(
            "pulls now", again, 6, message_id="msg_pulls", now_ms=log.now_ms
        )
    )
    for group, queue, offset in (
        ("behind", ORDERS, 4),
        ("there", ORDERS, 11),
        ("moved", ORDERS, 2),
        ("old", QueueId("gone", 0), 7),
    ):
        log.append(
            group_offsets.commit_message(
                group, queue, offset, message_id=f"msg_{group}", now_ms=log.now_ms
            )
        )
    reset = events.Reset(
        group="moved", positions=[events.Position(*ORDERS, 10)], generation=1, ends_retries=False
    )
    log.append(events.event_message(reset, now_ms=log.now_ms))

    found = checked(spark, log.close(), POSITIONS)

    assert counts_of(found) == {"backlog_expired": 2}
    items = [
        (item["group"], item["position"], item["first"], item["expired"])
        for item in found["positions"].items
    ]
    assert items == [("behind", 4, 10, 6), ("pulls now", 6, 10, 4)]
    assert (found["positions"].numbers["positions"], found["positions"].numbers["unknown"]) == (
        6,
        1,
    )


@pytest.mark.faults
def test_damage_at_the_end_of_the_log_is_not_told_twice(spark, tmp_path):
    """The checkpoint speaks of the record that is damaged."""
    log = WrittenLog(tmp_path / "store")
    log.append(message())
    log.append(message(b"newest"))
    store = log.close()
    (path,) = log.folder.iterdir()
    path.write_bytes(path.read_bytes().replace(b"newest", b"nearly"))

    found = checked(spark, store, Asked(("integrity", "positions")))

    assert found["integrity"].numbers["lost_bytes"] > 0
    assert counts_of(found) == {}
