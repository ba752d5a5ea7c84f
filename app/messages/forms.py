"""The forms in which many messages are sent: JSON and MessagePack.

One row a media type; everything else is alike.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from app.encoding import message_pack
from app.http.exchange import JSON, JSON_LINES
from app.messages import packed, packed_plain, payload, plain_rows
from app.messages.payload import Batch, JudgedEntry
from app.messages.plain_rows import BodyOf, PlainBatch, PlainEntry
from app.messages.schemas import BatchEntry
from app.messages.splitter import LineSplitter, Splitter, ValueSplitter
from app.problems import Refusal


class Form(NamedTuple):
    """How a batch, or an entry of a stream, is read.

    Readers take the bytes and the limit on the number of values.

    `plain_batch`, `plain_entry`: None where it may not be plain. `read_right_batch`: where one
    message is wrong, all are refused; `read_batch`: each by itself. `splitter`: makes one, for
    entries of at most so many bytes. `unit`: what an entry of a stream is called.
    """

    plain_batch: Callable[[bytes, int], PlainBatch | None]
    plain_entry: Callable[[bytes, int], PlainEntry | None]
    read_right_batch: Callable[[bytes, int], Batch]
    read_batch: Callable[[bytes, int], Batch]
    read_entry: Callable[[bytes, int], BatchEntry | JudgedEntry]
    body_of: BodyOf
    splitter: Callable[[int], Splitter]
    unit: str


_JSON = Form(
    plain_rows.plain_batch, plain_rows.plain_entry, payload.read_batch, payload.read_batch_by_entry,
    payload.read_line,
    plain_rows.body_of, LineSplitter, "line",
)  # fmt: skip
_PACKED = Form(
    packed_plain.plain_batch, packed_plain.plain_entry, packed.read_right_batch, packed.read_batch,
    packed.read_entry,
    packed_plain.body_of, ValueSplitter, "value",
)  # fmt: skip

OF_BATCH: Mapping[str, Form] = {JSON: _JSON, message_pack.MEDIA_TYPE: _PACKED}
OF_STREAM: Mapping[str, Form] = {
    **dict.fromkeys((JSON_LINES, "application/jsonl", JSON, "application/octet-stream"), _JSON),
    message_pack.MEDIA_TYPE: _PACKED,
}


def form_of(media_type: str, forms: Mapping[str, Form]) -> Form:
    """Raises Refusal unsupported_media_type."""
    form = forms.get(media_type)
    if form is None:
        named = f"{next(iter(forms))} or {message_pack.MEDIA_TYPE}"
        raise Refusal(
            "unsupported_media_type", f"the content type must be {named}, not {media_type[:100]}"
        )
    return form
