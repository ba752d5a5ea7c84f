"""Findings of an import about files of `config/` that are damaged or missing."""

import pytest

from app.hand_over.file_notes import sentence
from app.hand_over.found import FileNote
from app.store_moves.file_findings import file_findings
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.message import OffsetRange, QueueId

DELAYED = {QueueId(SCHEDULE_TOPIC, 2): OffsetRange(0, 4)}
MESSAGES = {QueueId("orders", 0): OffsetRange(0, 9)}
FILES = (
    "topics.json", "subscriptionGroup.json", "consumerOffset.json", "consumerFilter.json",
    "delayOffset.json",
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_each_copy_that_was_read_is_named_with_its_time_and_what_follows(name):
    found = file_findings([FileNote(name, "damaged (cut)", 1_700_000_000_000)], {}, ["billing"])

    is_seen_again = name in ("consumerOffset.json", "delayOffset.json")
    assert (len(found.twice), len(found.not_kept)) == (is_seen_again, not is_seen_again)
    (one,) = found.twice or found.not_kept
    begin = f"config/{name} is damaged (cut), and its .bak of 2023-11-14 22:13:20 UTC was read: "
    assert one.what.startswith(begin)


def test_a_copy_without_a_known_time_is_named():
    assert "and its .bak was read: " in sentence(FileNote("topics.json", "empty", 0))


@pytest.mark.parametrize(
    ("bounds", "groups", "findings"),
    [
        ({}, [], []),
        (MESSAGES, [], ["topics_missing", "consumerOffset_missing"]),
        (
            {},
            ["billing"],
            ["subscriptionGroup_missing", "consumerOffset_missing", "consumerFilter_missing"],
        ),
        (DELAYED, [], ["delayOffset_missing"]),
    ],
)
def test_a_missing_file_is_a_finding_if_the_store_has_anything_for_it(bounds, groups, findings):
    found = file_findings([FileNote(name, "missing") for name in FILES], bounds, groups)

    assert [one.code for one in [*found.not_kept, *found.twice]] == findings
    absent = [name for name in FILES if f"{name.partition('.')[0]}_missing" not in findings]
    assert found.harmless[0].startswith(f"config/ has no {', '.join(absent)}, ")
    assert len(found.harmless) == 1 + (not groups)


def test_delayed_messages_without_their_progress_may_be_delivered_again():
    found = file_findings([FileNote("delayOffset.json", "missing")], DELAYED, ["billing"])

    assert [one.code for one in found.twice] == ["delayOffset_missing"]
