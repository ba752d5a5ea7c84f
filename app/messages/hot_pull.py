"""Pulls of messages that memory has, answered at once: no task, no objects of a request, no struct
for a message.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from os import urandom
from time import perf_counter
from typing import NamedTuple

from msgspec import UNSET

from app.answering import query_of
from app.bodies.compression import MIN_BYTES, takes_gzip
from app.encoding import codec
from app.http.exchange import JSON, preferred_by
from app.long_polls import Waiting
from app.messages import frames
from app.messages.pull import BEGIN_OF_PAGE, MEDIA_TYPES, end_of_page
from app.messages.schemas import PullQuery
from app.messages.view import joined
from app.server.hot import HotAnswer, HotParts
from app.server.request import STATUS_LINES
from app.services import Reading
from delivery.filters.filters import EVERYTHING, compile_filter
from storage.errors import MessagingError
from storage.formats.record_block import RecordBlock
from storage.message import OffsetRange

_ID_BYTES = 8  # of a request's id
# More is left to the handler, in which others have their turn: fifty clients may ask in one turn of
# the loop.
_MOST_MESSAGES = 128  # half a millisecond as JSON
_MOST_BYTES = 128 << 10  # of their records
_MOST_RECORDS = 256
_MOST_RAW_BYTES = 256 << 10
_OK = 200

# A pull from an offset, with what else the query says in front of it and behind it.
_MORE = rb"([A-Za-z0-9_=&.*-]{0,100})"
_match = re.compile(
    rb"GET /v1/topics/([A-Za-z0-9_.-]{1,255})/queues/([0-9]{1,19})/messages\?(?:" + _MORE + rb"&)?"
    rb"offset=(0|[1-9][0-9]{0,17})(?:&" + _MORE + rb")? HTTP/1\.1\r\n"
).match  # fmt: skip


class _Wanted(NamedTuple):
    """The parameters of a pull beside its offset."""

    max_messages: int
    max_bytes: int
    wait_ms: int
    is_text: bool  # bodies that are UTF-8 come as text


class _Form(NamedTuple):
    """The form of the answers to one head, and how much is answered at once in that form."""

    media_type: bytes
    is_json: bool
    has_gzip: bool  # the client takes compressed answers
    most_messages: int
    most_bytes: int  # of their records


class _Waited(NamedTuple):
    """The state of a pull that waits.

    `until_ms`: on the monotonic clock; `begun`: by `perf_counter`.
    """

    reading: Reading
    until_ms: int
    begun: float


class HotPulls:
    """Answers pulls as `pull` does, or leaves them to it. Event loop only."""

    def __init__(self, parts: HotParts, get_reading: Callable[[], Reading]) -> None:
        self._parts = parts
        self._get_reading = get_reading

    def answering(self, headers: Mapping[str, str]) -> HotAnswer:
        media_type, has_gzip = preferred_by(headers, MEDIA_TYPES), takes_gzip(headers)
        if media_type == JSON:
            most_messages, most_bytes = _MOST_MESSAGES, MIN_BYTES if has_gzip else _MOST_BYTES
        else:
            most_messages, most_bytes = _MOST_RECORDS, _MOST_RAW_BYTES
        form = _Form(
            media_type.encode("ascii"), media_type == JSON, has_gzip, most_messages, most_bytes
        )
        return partial(self._answer, form)

    def _answer(
        self, form: _Form, data: bytes, waited: _Waited | None = None
    ) -> bytes | Waiting | None:
        """As `HotAnswer`. `waited`: the pull was held before, and waits no longer than it would
        have then.
        """
        begun = perf_counter() if waited is None else waited.begun
        found = _match(data)
        if found is None:
            return None
        topic_name, number, before, given_offset, behind = found.groups()
        wanted = _wanted(before, behind)
        bodies = self._parts.bodies
        if wanted is None or (waited is None and not bodies.has_plenty(wanted.max_bytes)):
            return None
        offset = int(given_offset)
        block = None
        try:
            reading = self._get_reading() if waited is None else waited.reading
            store = reading.store
            queue = reading.topics.get(topic_name.decode("ascii")).queue(int(number))
            bounds = store.bounds(queue)
            count = min(wanted.max_messages, bounds.end - offset)
            if not 0 <= count <= form.most_messages or offset < bounds.first:
                return None
            if count:
                if waited is not None and not bodies.has_plenty(wanted.max_bytes):
                    return None
                max_bytes = min(wanted.max_bytes, form.most_bytes)
                block = store.block_now(queue, offset, count=count, max_bytes=max_bytes)
                if block is None:
                    return None
            elif (wait := _wait_of(reading, wanted, begun, waited)) is not None:
                again = partial(self._answer, form, data, wait)
                return reading.long_polls.wait_for_arrival(
                    store, queue, offset, wait.until_ms, again
                )
        except MessagingError:
            return None
        pieces = _body_pieces(form, wanted, block, count, offset + count, bounds)
        return None if pieces is None else self._whole(form, reading, pieces, count, begun)

    def _whole(
        self, form: _Form, reading: Reading, pieces: list[bytes], count: int, begun: float
    ) -> bytes | None:
        """Head and body of the answer, whose messages are counted and whose request is noted as
        answered; None, with nothing noted, where the client takes so long a one compressed.
        """
        length = sum(map(len, pieces))
        varies_by_encoding = form.is_json and length >= MIN_BYTES
        if form.has_gzip and varies_by_encoding:
            return None
        reading.metrics.messages_out.inc(count)
        head = b"vary: %b\r\ncontent-length: %d\r\ncontent-type: %b\r\nrequest-id: %b\r\n\r\n" % (
            b"Accept, Accept-Encoding" if varies_by_encoding else b"Accept",
            length,
            form.media_type,
            urandom(_ID_BYTES).hex().encode("ascii"),
        )
        lines = (*self._parts.default_lines(), reading.head_lines())
        answer = b"".join((STATUS_LINES[_OK], *lines, head, *pieces))
        self._parts.metrics.requests.note("pullMessages", _OK, perf_counter() - begun)
        return answer


def _wait_of(
    reading: Reading, wanted: _Wanted, begun: float, waited: _Waited | None
) -> _Waited | None:
    """The wait of a pull that found no message; None where it asks for none, or has waited for as
    long as it asks.
    """
    if not wanted.wait_ms or reading.is_stopping:
        return None
    now_ms = reading.clock.monotonic_ms()
    until_ms = now_ms + wanted.wait_ms if waited is None else waited.until_ms
    return _Waited(reading, until_ms, begun) if now_ms < until_ms else None


@lru_cache(maxsize=1_024)
def _wanted(before: bytes | None, behind: bytes | None) -> _Wanted | None:
    """The parameters in these parts of a query; None where they are wrong, or ask for more than a
    number of messages without a filter.
    """
    try:
        query = codec.convert(
            dict(query_of(b"&".join(filter(None, (before, behind))))), PullQuery, pointer=""
        )
        wanted = compile_filter("tag", query.tag)
    except MessagingError:
        return None
    is_asked = [one is not UNSET for one in (query.offset, query.from_, query.group)]
    if any(is_asked) or wanted is not EVERYTHING:
        return None
    return _Wanted(
        query.max_messages, query.max_bytes, query.wait_ms, query.payload in ("auto", "utf8")
    )


def _body_pieces(
    form: _Form,
    wanted: _Wanted,
    block: RecordBlock | None,
    count: int,
    next_offset: int,
    bounds: OffsetRange,
) -> list[bytes] | None:
    """The pieces of the body; None where a message is not plain, or is not wanted as text."""
    result = "no_new_message" if block is None else "found"
    if not form.is_json:
        header = frames.header(count, next_offset, bounds, result)
        return [header, b"" if block is None else block.data]
    if block is None:
        return [BEGIN_OF_PAGE, end_of_page(next_offset, bounds, result)]
    messages = joined(block.columns(), b"}") if wanted.is_text else None
    if messages is None:
        return None
    return [BEGIN_OF_PAGE, messages, end_of_page(next_offset, bounds, result)]
