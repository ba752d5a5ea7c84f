r"""Rows: messages as they are appended, with the bytes of their property strings finished.

A row is a plain tuple (`storage.message.Row`), which takes a fraction of the time of a struct to
make and to read. Its property string is all of the record's own properties; `unit.py` puts the
padding, the unit item and the seal behind it.
"""

from collections.abc import Iterable

from storage.formats import properties, queue_entry
from storage.formats.names import STORED_AGAIN
from storage.message import Message, Row

_NO_BODY_MARK = properties.NO_BODY_MARK.encode()


def rows_of(messages: Iterable[Message]) -> list[Row]:
    """A row for each message."""
    rows: list[Row] = []
    for message in messages:
        key = message.key
        tag = message.tag
        # Nearly every message has just these; a call takes a quarter of the time of all this.
        if key is None or tag is None or message.system or message.properties:
            own = _property_string(message)
        else:
            own = f"UNIQ_KEY\x01{message.message_id}\x02KEYS\x01{key}\x02TAGS\x01{tag}\x02".encode()
        body = message.body
        if not body and message.queue.topic in STORED_AGAIN:
            own += _NO_BODY_MARK
            body = properties.PLACEHOLDER
        code = queue_entry.tag_hash(tag)
        rows.append(
            (message.queue, own, body, code, message.born_at_ms, message.transaction,
            message.prepared_log_offset, message.header)
        )  # fmt: skip
    return rows


def _property_string(message: Message) -> bytes:
    items = [
        (properties.MESSAGE_ID, message.message_id),
        (properties.KEYS, message.key or ""),
        (properties.TAGS, message.tag or ""),
        *message.system.items(),
    ]
    own = message.properties
    if own:
        items += own.items()
        items.append(
            (properties.EMPTY, ",".join([name for name, value in own.items() if not value]))
        )
    return properties.encode(items)
