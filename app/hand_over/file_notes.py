"""Sentences about files of `config/` that were not read themselves: the file, what was read
instead, and the consequence. Pure.
"""

from datetime import UTC, datetime

from app.hand_over.found import FileNote
from storage.formats import (
    consumer_filters,
    consumer_offsets,
    delay_progress,
    group_configs,
    topic_configs,
)

_OF_BACKUP = {
    topic_configs.FILE: "topics and settings that were changed since then are not kept",
    group_configs.FILE: "groups and settings that were changed since then are not kept",
    consumer_offsets.FILE: (
        "groups go back to the offsets in it, and messages that they consumed since then may be "
        "seen twice"
    ),
    consumer_filters.FILE: "SQL92 filters that were changed since then are not kept",
    delay_progress.FILE: (
        "messages delayed by level that were delivered since then may be delivered again"
    ),
}
_OF_NONE = {
    topic_configs.FILE: (
        "topics without messages are not kept, and the others accept all types of messages and "
        "have the queues that the store has files of"
    ),
    group_configs.FILE: (
        "groups without an offset are not kept, and the others have the default attempts, backoff "
        "and order"
    ),
    consumer_offsets.FILE: (
        "no group has an offset. A group that gets topics begins at the first message, and "
        "receives what it has consumed again, unless its `start` is `latest` or its offsets are "
        "set before"
    ),
    consumer_filters.FILE: "SQL92 filters are not kept, if there were any",
    delay_progress.FILE: (
        "messages delayed by level that were delivered may be delivered again, if they are in the "
        "log"
    ),
}
IN_OFFSETS = (consumer_offsets.FILE, delay_progress.FILE)


def sentence(note: FileNote) -> str:
    """The file, what was read instead, and what follows from it."""
    begin = f"config/{note.file} is {note.reason}"
    if note.backup_ms is None:
        return f"{begin}: {_OF_NONE[note.file]}"
    at = f" of {_time(note.backup_ms)}" if note.backup_ms else ""
    return f"{begin}, and its .bak{at} was read: {_OF_BACKUP[note.file]}"


def _time(wall_ms: int) -> str:
    return f"{datetime.fromtimestamp(wall_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
