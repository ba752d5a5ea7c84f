"""The findings of an import about files of `config/` that are missing, or of which a copy was read.
Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from app.hand_over.file_notes import IN_OFFSETS, sentence
from app.hand_over.found import FileNote
from app.store_moves.report import Finding, finding
from storage.formats import consumer_offsets, delay_progress, topic_configs
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.topic_configs import TopicKind, broker_names, kind_of
from storage.message import OffsetRange, QueueId


class FileFindings(NamedTuple):
    """`harmless`: sentences about missing files that would have had nothing."""

    not_kept: list[Finding]
    twice: list[Finding]
    harmless: list[str]


def file_findings(
    files: Iterable[FileNote], bounds: Mapping[QueueId, OffsetRange], groups: Sequence[str]
) -> FileFindings:
    """`bounds`: of the queues that have, or had, messages. `groups`: those taken over."""
    not_kept: list[Finding] = []
    twice: list[Finding] = []
    absent: list[FileNote] = []
    for note in files:
        is_backup = note.backup_ms is not None
        if not is_backup and not _would_have_content(note.file, bounds, groups):
            absent.append(note)
            continue
        is_seen_again = note.file in IN_OFFSETS and (is_backup or note.file == delay_progress.FILE)
        names = groups if note.file == consumer_offsets.FILE else []
        stem = note.file.partition(".")[0]
        code = f"{stem}_{'backup' if is_backup else 'missing'}"
        found = finding(code, sentence(note), names, count=max(1, len(names)))
        (twice if is_seen_again else not_kept).append(found)
    return FileFindings(not_kept, twice, [*_harmless(absent), *_no_group(groups)])


def _would_have_content(
    file: str, bounds: Mapping[QueueId, OffsetRange], groups: Sequence[str]
) -> bool:
    if file == delay_progress.FILE:
        return any(queue.topic == SCHEDULE_TOPIC and found.end for queue, found in bounds.items())
    of_the_broker = broker_names({queue.topic: None for queue in bounds})
    has_messages = any(
        found.end and kind_of(queue.topic, of_the_broker) is TopicKind.OF_CLIENTS
        for queue, found in bounds.items()
    )
    if file == topic_configs.FILE:
        return has_messages
    return bool(groups) or (file == consumer_offsets.FILE and has_messages)


def _harmless(absent: Sequence[FileNote]) -> Iterator[str]:
    if absent:
        names = ", ".join(note.file for note in absent)
        yield f"config/ has no {names}, and the store nothing that would be in there"


def _no_group(groups: Sequence[str]) -> Iterator[str]:
    if not groups:
        yield "No group has consumed: the store names none"
