"""Large bodies in a process of their own: the same messages and the same refusals as here, and what
happens when it ends.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.bodies.process import BodyProcess
from app.bodies.thread import LOOP_BYTES, THREAD_BYTES, BodyThread
from app.encoding import codec
from app.messages import packed
from app.messages.build import build, build_reply
from app.messages.payload import JudgedEntry, read_batch, read_batch_by_entry, read_line
from app.messages.schemas import BatchEntry, MessageInput, ReplyInput
from app.problems import Refusal, as_refusal
from app.registry.payload_schema import RefusedSchema
from app.registry.topics import Topic, TopicSettings
from storage.errors import MessagingError
from tests.support.packed import VALUES as VALUES_OF_PACK

VALUES = 1_000
LIMIT = 300  # bytes of a message


@pytest.fixture(scope="module")
def process() -> Iterator[BodyProcess]:
    process = BodyProcess()
    yield process
    process.close()


def outcome(read: Callable[[], Any], depth: int) -> Any:
    """All that can be seen of the messages of a request: what is stored of each, or why it is
    refused.
    """
    try:
        found = read()
        if isinstance(found, ReplyInput):
            return build_reply(found, limit_bytes=LIMIT)
        if isinstance(found, MessageInput):
            return built(found, depth)
        if isinstance(found, BatchEntry | JudgedEntry):
            return found.id, built(found.message, depth)
        return found.is_atomic, [(entry.id, built(entry.message, depth)) for entry in found.entries]
    except MessagingError as error:
        return refused(error)


def built(given: MessageInput | Refusal, depth: int) -> Any:
    """Of a topic without a schema, and of one whose schema refuses every message."""
    return [_built(given, depth, schema) for schema in (None, RefusedSchema("of the test"))]


def _built(given: MessageInput | Refusal, depth: int, schema: RefusedSchema | None) -> Any:
    settings = TopicSettings(topic="orders", retention_ms=1, max_message_bytes=LIMIT)
    topic = Topic(settings, schema, created_at_ms=0, revision=1)
    try:
        if isinstance(given, Refusal):
            raise given
        assert given.require_durability in ("synced", msgspec.UNSET)
        return build(given, topic, message_id="m", now_ms=0, depth=depth)
    except MessagingError as error:
        return refused(error)


def refused(error: MessagingError) -> Any:
    refusal = as_refusal(error)
    return refusal.detail, vars(refusal)


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


PAYLOADS = [
    b'"x"',
    b'"\\n\\u00fc\\ud83d\\ude00"',
    '"ü漢😀"'.encode(),
    b'"eHg="',
    b'"eHg"',
    b'"' + b"x" * LIMIT + b'"',
    b'"\\ud800"',
    b"5",
]
BODIES = [
    b' { "a" : [ 1 , 2.50 , 1e5 ] , "a" : "\\u00e9\\n" } ', b"NaN", b"1e400", b'"\\ud800"',
    b'"\xff"', b"[1,]", b'"\x01"',
    b"01", *map(nested, (60, 65, 124, 125, 126, 127, 128, 129)), b"[" * 126 + b"1e400" + b"]" * 126,
    b'["' + b"x" * LIMIT + b'"]',
]  # fmt: skip
FIELDS = {
    b"payload": PAYLOADS,
    b"json": BODIES,
    b"payload_encoding": [b'"base64"', b'"utf8"', b'"utf9"'],
    b"content_type": [b'"text/plain"', b'"application/json"', b'"a\\u0001"'],
    b"properties": [b"{}", b'{"a":"b"}', b'{"a b":"c"}', b'{"a":"\\u0001"}', b'{"__a":""}',
    b'{"a":1}',
                    b'{"a":"' + b"x" * (16 << 10) + b'"}',
                    b'{"a":"' + b"x" * ((16 << 10) - 3) + b'"}'],
    b"key": [b'"k"', b'""', b'"a b"'],
    b"tag": [b'"t"', b'"a|b"'],
    b"delay_ms": [b"5", b"-1"],
    b"ordering_key": [b'"o"'],
    b"require_durability": [b'"synced"'],
    b"queue_id": [b"1", b"900"],
    b"unknown": [b"1"],
}  # fmt: skip
ENDS = [b"", b"", b"", b" ", b"x", b"}"]


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    names = [
        draw(st.sampled_from([b"payload", b"json"])),
        *draw(st.lists(st.sampled_from(list(FIELDS)), max_size=3)),
    ]
    return (
        b"{"
        + b",".join([b'"%s":%s' % (name, draw(st.sampled_from(FIELDS[name]))) for name in names])
        + b"}"
    )


@given(st.lists(messages(), min_size=1, max_size=3), st.sampled_from(ENDS))
@example([b'{"json":%s}' % nested(125)], b"")
@example([b'{"json":%s}' % (b"[" * 126 + b"1e400" + b"]" * 126)], b"")
@example([b'{"json":%s,"payload":"x"}' % nested(128)], b"")
@example(
    [
        b'{"payload":"x","properties":{"a":"b"}}',
        b'{"payload":"x","properties":{"a b":"c"},"tag":"a|b"}',
    ],
    b"",
)
@example([b'{"payload":"x","key":"k","properties":{"a":"%s"}}' % (b"x" * (16 << 10))], b"")
@settings(max_examples=40)
def test_a_request_read_in_the_process_is_the_same_as_one_read_here(process, sent, end):
    one = sent[0] + end
    entries = b",".join(
        [b'{"id":"%d","message":%s}' % (index, message) for index, message in enumerate(sent)]
    )
    batch = b'{"atomic":false,"entries":[' + entries + b"]}" + end
    line = b'{"id":"1","message":' + sent[0] + b"}" + end
    for function, arguments, depth in (
        (codec.decode_as, (one, MessageInput, VALUES), 1),
        (codec.decode_as, (one, ReplyInput, VALUES), 1),
        (read_batch, (batch, VALUES), 4),
        (read_batch_by_entry, (batch, VALUES), 4),
        (read_line, (line, VALUES), 2),
    ):
        here = outcome(partial(function, *arguments), depth)
        there = outcome(partial(process.call, function, *arguments), depth)

        assert there == here


MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "payload": VALUES_OF_PACK,
        "json": VALUES_OF_PACK,
        "key": st.sampled_from(["k", "a b", 1]),
        "payload_encoding": st.sampled_from(["base64", "utf8"]),
        "unknown": st.just(1),
    },
)


@given(
    st.lists(MESSAGES | VALUES_OF_PACK, min_size=1, max_size=3),
    st.integers(min_value=0, max_value=2),
)
@example(
    [
        {"json": msgspec.Raw(b"\x91" * 124 + b"\x01")},
        {"json": msgspec.Raw(b"\x91" * 127 + b"\x01")},
    ],
    0,
)
@example([{"payload": b"\xff\x00"}, {"payload": b"x", "payload_encoding": "base64"}], 0)
@settings(max_examples=40)
def test_messagepack_read_in_the_process_is_the_same_as_what_is_read_here(process, sent, missing):
    batch = msgspec.msgpack.encode(
        {"entries": [{"id": "1", "message": message} for message in sent], "atomic": False}
    )
    entry = msgspec.msgpack.encode({"id": "1", "message": sent[0]})
    readers = (
        (packed.read_right_batch, batch, 4),
        (packed.read_batch, batch, 4),
        (packed.read_entry, entry, 2),
    )
    for function, body, depth in readers:
        cut = body[: len(body) - missing]
        here = outcome(partial(function, cut, VALUES), depth)
        there = outcome(partial(process.call, function, cut, VALUES), depth)

        assert there == here


def test_what_is_not_made_of_a_body_comes_back_as_it_was_sent(process):
    sent = (
        b'{"json":[1],"key":"k","properties":{"a":"b"},"delay_ms":5,"require_durability":"synced"}'
    )

    here = codec.decode_as(sent, MessageInput, VALUES)
    there = process.call(codec.decode_as, sent, MessageInput, VALUES)

    differing = {
        name
        for name, value in msgspec.structs.asdict(here).items()
        if getattr(there, name) != value
    }
    assert differing == {"json", "properties"}
    assert there.made.body == (b"[1]", "application/json")


def test_a_body_of_megabytes_goes_there_and_back(process):
    text = "ü\n\x01😀" * (1 << 20)

    message = process.call(
        codec.decode_as, json.dumps({"payload": text}).encode(), MessageInput, VALUES
    )

    assert message.made.body == (text.encode(), None)


def test_a_request_that_ends_the_process_twice_is_refused_and_the_next_one_is_read(process):
    before = process.call(os.getpid)
    with pytest.raises(Refusal) as ended:
        process.call(os._exit, 3)

    assert ended.value.code == "overloaded"
    assert process.call(os.getpid) != before


def test_an_error_that_is_no_refusal_is_raised_here_and_ends_nothing(process):
    before = process.call(os.getpid)

    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        process.call(divmod, 1, 0)

    assert process.call(os.getpid) == before


def test_what_cannot_be_read_of_an_answer_is_no_part_of_the_next_one(process):
    answer = (
        "(type('Wrong', (), {'__reduce__': lambda self: (int, ('no number',))})(), ['x' * "
        "100_000, 'y' * 100_000])"
    )
    with pytest.raises(ValueError, match="no number"):
        process.call(eval, answer)

    assert process.call(divmod, 7, 2) == (3, 1)


def test_the_process_ends_with_the_service():
    process = BodyProcess()
    child_id = process.call(os.getpid)
    process.close()

    with pytest.raises(ProcessLookupError):
        os.kill(child_id, 0)


async def test_json_is_read_on_the_loop_on_a_thread_or_in_the_process_as_it_is_long():
    here, loop = os.getpid(), threading.get_ident()
    where = b"(__import__('os').getpid(), __import__('threading').get_ident())"
    thread = BodyThread()

    at_once = await thread.read(eval, where.ljust(LOOP_BYTES))
    beside, slow = (
        await thread.read(eval, where.ljust(THREAD_BYTES)),
        await thread.read(eval, where, is_slow=True),
    )
    in_process = await thread.read(eval, where.ljust(THREAD_BYTES + 1))
    await thread.aclose()

    assert at_once == (here, loop)
    assert beside == slow
    assert beside[0] == here
    assert beside[1] != loop
    assert in_process[0] != here
