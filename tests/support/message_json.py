"""Compares the two ways from a record to JSON: by its parts, and by decoding its message."""

from collections.abc import Sequence

from app.encoding import codec
from app.messages.view import joined as in_columns
from app.messages.view import message_view, parts_of_list
from app.word_sets import PayloadForm
from storage.formats import record as records
from storage.formats import stored_record
from storage.formats.record import Record
from storage.formats.record_block import Columns


def assert_both_ways_are_equal(found: Sequence[Record], form: PayloadForm = "auto") -> None:
    """The messages, their tags, and the JSON of the list, byte for byte."""
    messages = [records.to_message(record) for record in found]
    stored = [stored_record.of_record(record) for record in found]

    assert [one.message() for one in stored] == messages
    assert [one.tag for one in stored] == [one.tag for one in messages]
    joined = b"[" + b"".join(parts_of_list(stored, form)) + b"]"
    assert joined == codec.encode([message_view(one, form) for one in messages])

    if form in ("auto", "utf8") and stored:
        columns = Columns(
            [one.queue for one in stored],
            [one.queue_offset for one in stored],
            [one.body for one in stored],
            [one.data[one.properties_at :] for one in stored],
            [one.born_at_ms for one in stored],
            [one.stored_at_ms for one in stored],
        )
        together = in_columns(columns, b"}")
        assert together is None or b"[" + together + b"]" == joined
