"""Bodies that a client of RocketMQ has compressed: the bits that say so, and decompression.

Bit 0x1 of `sys_flag` marks a compressed body, bits 0x700 say how: 0x100 one LZ4 frame, 0x200 one
zstd frame, 0x300 zlib; 0 is zlib as well, from clients that knew nothing else. The log keeps such a
body as it is, and so does every copy of the message.

Source: RocketMQ MessageSysFlag, CompressionType, CompressorFactory, MessageDecoder#decode.
"""

import zlib
from collections.abc import Callable, Mapping

import zstandard
from lz4.frame import LZ4FrameDecompressor

LZ4 = 0x100
ZSTD = 0x200
ZLIB = 0x300
_OLD_ZLIB = 0
_TYPE_MASK = 0x700

# The largest body that a topic takes, and four times what a client of RocketMQ sends with its
# defaults. A few bytes can be the compressed form of gigabytes.
MAX_DECOMPRESSED_BYTES = 16 << 20


class BodyNotDecompressed(ValueError):
    """The body is not what its flags say, or too large; the text is the reason.

    `may_be_large`: a higher limit may help.
    """

    def __init__(self, reason: str, *, may_be_large: bool = False) -> None:
        super().__init__(reason)
        self.may_be_large = may_be_large


def decompressed(body: bytes, sys_flag: int, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """The body as its sender had it, of at most so many bytes.

    Raises BodyNotDecompressed.
    """
    decompress = _DECOMPRESS.get(sys_flag & _TYPE_MASK)
    if decompress is None:
        raise BodyNotDecompressed(f"compression type {(sys_flag & _TYPE_MASK) >> 8} is not known")
    return decompress(body, max_bytes)


def _of_zlib(body: bytes, max_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise BodyNotDecompressed(f"it is not zlib: {error}") from None
    return _whole(found, max_bytes, has_ended=stream.eof)


def _of_lz4(body: bytes, max_bytes: int) -> bytes:
    stream = LZ4FrameDecompressor()
    try:
        found: bytes = stream.decompress(body, max_bytes + 1)
    except RuntimeError as error:
        raise BodyNotDecompressed(f"it is not an LZ4 frame: {error}") from None
    if stream.unused_data:
        raise _not_alone()
    return _whole(found, max_bytes, has_ended=stream.eof)


def _of_zstd(body: bytes, max_bytes: int) -> bytes:
    try:
        # where a frame states its size, the library allocates that
        if zstandard.frame_content_size(body) > max_bytes:
            raise _too_large(max_bytes)
        found = zstandard.ZstdDecompressor().decompress(body, max_output_size=max_bytes)
        # only this form has the bytes behind the frame, and it has no limit of its own
        stream = zstandard.ZstdDecompressor().decompressobj()
        stream.decompress(body)
    except zstandard.ZstdError as error:
        raise BodyNotDecompressed(
            f"it is not a zstd frame of at most {max_bytes} bytes: {error}", may_be_large=True
        ) from None
    if stream.unused_data:
        raise _not_alone()
    return found


_DECOMPRESS: Mapping[int, Callable[[bytes, int], bytes]] = {
    _OLD_ZLIB: _of_zlib,
    LZ4: _of_lz4,
    ZSTD: _of_zstd,
    ZLIB: _of_zlib,
}


def _whole(found: bytes, max_bytes: int, *, has_ended: bool) -> bytes:
    if len(found) > max_bytes:
        raise _too_large(max_bytes)
    if not has_ended:
        raise BodyNotDecompressed("its compressed form is incomplete")
    return found


def _not_alone() -> BodyNotDecompressed:
    return BodyNotDecompressed("other bytes follow its frame")


def _too_large(max_bytes: int) -> BodyNotDecompressed:
    return BodyNotDecompressed(f"it is larger than {max_bytes} bytes", may_be_large=True)
