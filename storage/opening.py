"""Bodies of messages as their senders had them: decompressed, where a client of RocketMQ compressed
them.

The log, and every copy of a message, keeps a body as it is stored. A message that is returned with
its body decompressed says so: its flags are without `COMPRESSED`, as in a client of RocketMQ.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeVar, overload

import msgspec

from storage.formats import compression, stored_record
from storage.formats import record as records
from storage.formats.compression import BodyNotDecompressed
from storage.formats.stored_record import Found, StoredRecord, body_bytes_of
from storage.message import StoredMessage

F = TypeVar("F", StoredMessage, StoredRecord)

_AT_ONCE_BYTES = 256 << 10  # a body of so many is decompressed within half a millisecond


def is_compressed(found: Found) -> bool:
    if isinstance(found, StoredRecord):
        return found.is_compressed
    return found.header is not None and bool(found.header.sys_flag & records.COMPRESSED)


@overload
async def opened(found: StoredMessage) -> StoredMessage: ...


@overload
async def opened(found: StoredRecord) -> StoredRecord: ...


async def opened(found: Found) -> Found:
    """The message with its body decompressed, if it is compressed.

    Raises BodyNotDecompressed.
    """
    if not is_compressed(found):
        return found
    if isinstance(found, StoredRecord):
        record = records.decode(found.data)
        body = await _decompressed(record.body, record.sys_flag)
        record = record._replace(body=body, sys_flag=record.sys_flag & ~records.COMPRESSED)
        return stored_record.of_record(record)
    assert found.header is not None
    header = found.header
    body = await _decompressed(found.body, header.sys_flag)
    header = msgspec.structs.replace(header, sys_flag=header.sys_flag & ~records.COMPRESSED)
    return msgspec.structs.replace(found, body=body, header=header)


async def _decompressed(body: bytes, sys_flag: int) -> bytes:
    await asyncio.sleep(0)  # others have their turn between the bodies of a list
    try:
        return compression.decompressed(body, sys_flag, max_bytes=_AT_ONCE_BYTES)
    except BodyNotDecompressed as error:
        if not error.may_be_large:
            raise
    try:
        return await asyncio.to_thread(compression.decompressed, body, sys_flag)
    except BodyNotDecompressed as error:
        # whatever the reason, this may have taken as long as a large body does
        raise BodyNotDecompressed(str(error), may_be_large=True) from None


async def each_opened(found: Sequence[F], max_bytes: int) -> list[F | BodyNotDecompressed]:
    """The first of these messages, with their bodies decompressed, or why that is not possible: as
    many as have so many bytes of bodies in all, but at least one.

    A body that is too large counts as the largest one: a few bytes can take as long.
    """
    shown: list[F | BodyNotDecompressed] = []
    left_bytes = max_bytes
    for one in found:
        result: F | BodyNotDecompressed = one
        byte_count = body_bytes_of(one)
        if is_compressed(one):
            try:
                result = await opened(one)
                byte_count = body_bytes_of(result)
            except BodyNotDecompressed as error:
                result = BodyNotDecompressed(str(error))  # without a traceback
                if error.may_be_large:
                    byte_count = compression.MAX_DECOMPRESSED_BYTES
        left_bytes -= byte_count
        if shown and left_bytes < 0:
            break
        shown.append(result)
    return shown


async def opened_to_show(found: Sequence[F], max_bytes: int) -> list[F]:
    """`each_opened`, where one whose body cannot be decompressed stays as it is."""
    return [
        one if isinstance(result, BodyNotDecompressed) else result
        for one, result in zip(found, await each_opened(found, max_bytes), strict=False)
    ]
