"""The offset message id of RocketMQ: where a broker stored a message, in hexadecimal digits.

    digits   bytes   field                 (big-endian)
    8 / 32   4 / 16  address of the broker, IPv4 or IPv6
    8        4       port
    16       8       log offset of the record

The first two are the store host of the record (`formats/record.py`). A message id that the client
of RocketMQ makes (UNIQ_KEY) may have the same length.

Source: RocketMQ MessageDecoder#createMessageId, #decodeMessageId.
"""

import re
from typing import NamedTuple

_DIGITS = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
_OFFSET_BYTES = 8


class OffsetId(NamedTuple):
    store_host: bytes
    log_offset: int


def encode(offset_id: OffsetId) -> str:
    place = offset_id.log_offset.to_bytes(_OFFSET_BYTES, "big")
    return (offset_id.store_host + place).hex().upper()


def decode(text: str) -> OffsetId | None:
    """The place that the id names; None if the text cannot be such an id."""
    if _DIGITS.fullmatch(text) is None:
        return None
    raw = bytes.fromhex(text)
    return OffsetId(raw[:-_OFFSET_BYTES], int.from_bytes(raw[-_OFFSET_BYTES:], "big"))
