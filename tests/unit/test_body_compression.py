"""Compressed bodies of RocketMQ's clients: what is decompressed, and what is refused."""

import asyncio
import zlib
from contextlib import suppress

import lz4.frame
import pytest
import zstandard

from storage.formats import compression
from storage.formats import record as records
from storage.formats.compression import BodyNotDecompressed
from storage.formats.stored_record import StoredRecord, of_message, of_record
from storage.message import RecordHeader, StoredMessage
from storage.opening import is_compressed, opened, opened_to_show
from tests.support.builders import encoded, message

BODY = bytes(range(256)) * 100


def streamed_zstd(body: bytes) -> bytes:
    """One frame that does not state its size, as ZstdOutputStream writes it."""
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return stream.compress(body) + stream.flush()


COMPRESS = {
    0: zlib.compress,
    compression.LZ4: lz4.frame.compress,
    compression.ZSTD: streamed_zstd,
    compression.ZSTD | 0x1000: zstandard.ZstdCompressor().compress,  # the size is stated
    compression.ZLIB: zlib.compress,
}
each_type = pytest.mark.parametrize("flags", COMPRESS, ids=hex)


def stored(body: bytes, flags: int, **fields) -> StoredMessage:
    header = RecordHeader(7, flags | records.COMPRESSED, bytes([10, 0, 0, 7, 0, 0, 1, 2]), 0)
    made = encoded([message(body, header=header, **fields)])
    return records.to_message(records.decode(made.data))


@each_type
@pytest.mark.parametrize("body", [b"", b"x", BODY, bytes(1 << 20)], ids=len)
def test_a_body_is_decompressed_by_its_flags(flags, body):
    assert compression.decompressed(COMPRESS[flags](body), flags) == body


@each_type
def test_a_body_of_the_largest_size_is_decompressed_and_no_larger_one(flags):
    for size in (compression.MAX_DECOMPRESSED_BYTES, 999):
        packed = COMPRESS[flags](bytes(size))
        assert len(packed) < size
        assert compression.decompressed(packed, flags, max_bytes=size) == bytes(size)
        with pytest.raises(BodyNotDecompressed):
            compression.decompressed(packed, flags, max_bytes=size - 1)


@each_type
def test_a_few_bytes_that_would_become_gigabytes_are_refused(flags):
    packed = COMPRESS[flags](bytes(64 << 20))

    with pytest.raises(BodyNotDecompressed):
        compression.decompressed(packed, flags)


@each_type
def test_a_body_that_is_cut_off_is_refused_at_every_length(flags):
    packed = COMPRESS[flags](b"some text and some more text" * 3)
    for length in range(len(packed)):
        with pytest.raises(BodyNotDecompressed):
            compression.decompressed(packed[:length], flags)


@pytest.mark.parametrize(
    "flags", [flags for flags in COMPRESS if flags & compression.ZLIB != compression.ZLIB and flags]
)
@pytest.mark.parametrize("body", [b"", BODY], ids=len)
@pytest.mark.parametrize("is_frame", [True, False])
def test_bytes_behind_the_frame_of_a_body_are_refused_and_not_dropped(flags, body, is_frame):
    packed = COMPRESS[flags](body)

    with pytest.raises(BodyNotDecompressed):
        compression.decompressed(packed + (COMPRESS[flags](b"more") if is_frame else b"x"), flags)


@each_type
def test_damage_of_a_body_gives_another_body_or_is_refused_and_is_never_another_error(flags):
    packed = COMPRESS[flags](b"some text and some more text" * 3)
    for bit in range(len(packed) * 8):
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << bit % 8
        with suppress(BodyNotDecompressed):
            compression.decompressed(bytes(flipped), flags)


@pytest.mark.parametrize("kind", range(4, 8))
def test_a_type_that_rocketmq_does_not_have_is_refused(kind):
    with pytest.raises(BodyNotDecompressed, match=f"compression type {kind} is not known"):
        compression.decompressed(zlib.compress(BODY), kind << 8)


@each_type
@pytest.mark.parametrize("size", [100, 400 << 10])
async def test_a_message_is_opened_as_a_client_of_rocketmq_does(flags, size):
    body = bytes(size)
    given = stored(COMPRESS[flags](body), flags)
    assert is_compressed(given)

    shown = await opened(given)

    assert shown.body == body
    assert not is_compressed(shown)
    assert shown.header is not None
    assert shown.header.sys_flag == flags
    assert (shown.header.flag, shown.message_id) == (7, given.message_id)


@each_type
async def test_a_record_is_opened_as_its_message_is(flags):
    given = of_message(stored(COMPRESS[flags](BODY), flags, key="k", properties={"a": "b"}))
    assert isinstance(given, StoredRecord)
    assert is_compressed(given)

    shown = await opened(given)

    assert shown.message() == await opened(given.message())
    assert shown.body == BODY
    assert not of_record(records.decode(shown.data)).is_compressed


async def test_as_many_are_opened_as_there_is_room_for_and_one_that_cannot_be_stays_as_it_is():
    good = stored(zlib.compress(BODY), 0)
    bad = stored(b"not zlib", 0)
    plain = records.to_message(records.decode(encoded([message(b"plain")]).data))

    shown = await opened_to_show([good, bad, plain, good, good], 2 * len(BODY) + 100)

    assert [one.body for one in shown] == [BODY, b"not zlib", b"plain", BODY]
    assert is_compressed(shown[1])
    assert [one.body for one in await opened_to_show([good, plain], 1)] == [BODY]


@each_type
async def test_of_bodies_that_are_too_large_a_list_decompresses_one(flags, monkeypatch):
    plain = records.to_message(records.decode(encoded([message(b"plain")]).data))
    bomb = stored(COMPRESS[flags](bytes(17 << 20)), flags)
    given = [plain, *[bomb] * 100]
    calls = []
    decompressed = compression.decompressed
    monkeypatch.setattr(
        compression,
        "decompressed",
        lambda *args, **limits: (calls.append(limits), decompressed(*args, **limits))[1],
    )

    assert await opened_to_show(given, 16 << 20) == [plain]
    assert await opened_to_show(given[1:], 16 << 20) == [bomb]
    assert len(calls) <= 6


@each_type
async def test_others_have_their_turn_between_the_bodies_of_a_list(flags):
    given = [stored(COMPRESS[flags](bytes(1_000)), flags)] * 50
    showing = asyncio.create_task(opened_to_show(given, 1 << 20))
    turns = 0
    while not showing.done():
        await asyncio.sleep(0)
        turns += 1

    assert [one.body for one in showing.result()] == [bytes(1_000)] * 50
    assert turns >= 50
