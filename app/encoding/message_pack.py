"""MessagePack in: bodies, the values of a stream, and what of it has a form as JSON.

A value tells its length as it goes, so the values of a stream need nothing between them; where one
ends is found by its heads alone (`skip`). Limits are those of JSON (`app/encoding/codec.py`),
counted in the same way: keys of objects are no values.
"""

from typing import Any, TypeVar

import msgspec

from app.encoding import codec
from app.problems import Refusal, invalid_field, too_large

T = TypeVar("T")

MEDIA_TYPE = "application/msgpack"

_decode = msgspec.msgpack.Decoder().decode
_decode_json = msgspec.json.Decoder().decode
_PIECE_BYTES = 64 << 10

# By the first byte of a value: how many bytes to go on; below 0, that its length follows in so
# many; 0: no value begins so.
_STEPS = [1] * 256
_MORE = [-1] * 256  # so many more values are to come, keys among them
_FOUND = [0] * 256  # of those that are no keys
_PER_ITEM = [0] * 256  # values of each item of a list or map whose length follows
_TYPE_BYTES = [0] * 256  # of an extension whose length follows
for _n in range(16):
    _MORE[0x80 + _n], _FOUND[0x80 + _n] = 2 * _n - 1, _n  # maps
    _MORE[0x90 + _n], _FOUND[0x90 + _n] = _n - 1, _n  # lists
for _n in range(32):
    _STEPS[0xA0 + _n] = 1 + _n  # texts
_STEPS[0xC1] = 0
_STEPS[0xC4:0xCA] = -1, -2, -4, -1, -2, -4  # binary, extensions
_STEPS[0xCA:0xD9] = 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18  # numbers, short extensions
_STEPS[0xD9:0xE0] = -1, -2, -4, -2, -4, -2, -4  # texts, lists, maps
_TYPE_BYTES[0xC7:0xCA] = 1, 1, 1
_PER_ITEM[0xDC:0xE0] = 1, 1, 2, 2


class NoValue(Exception):
    """No value begins at this place."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def skip(data: bytes | bytearray, at: int, left: int, end: int) -> tuple[int, int, int]:
    """Go over `left` values, which begin at `at`, and over all that is in them, as far as `end`.

    Returns (where to go on, how many values are left, how many were found in others). The place may
    be beyond `end`: there the last value ends. Raises NoValue.
    """
    steps, more, found = _STEPS, _MORE, 0
    while left and at < end:
        code = data[at]
        step = steps[code]
        if step > 0:
            at += step
            left += more[code]
            found += _FOUND[code]
            continue
        behind = at + 1 - step
        if not step:
            raise NoValue(at)
        if behind > end:
            break
        length = int.from_bytes(data[at + 1 : behind], "big")
        at = behind
        if _PER_ITEM[code]:
            left += _PER_ITEM[code] * length - 1
            found += length
        else:
            at += length + _TYPE_BYTES[code]
            left -= 1
    return at, left, found


def check_values(data: bytes, limit: int) -> None:
    """Raise Refusal body_too_large where MessagePack has more values than `limit`.

    A list or map counts as one more.

    What is no MessagePack is left to the decoder.
    """
    if len(data) <= limit:
        return
    at, left, found, before = 0, 1, 1, -1
    while left and before < at < len(data):
        before = at
        try:
            at, left, more = skip(data, at, left, min(at + _PIECE_BYTES, len(data)))
        except NoValue:
            return
        found += more
        if found > limit:
            raise too_large(
                "values", limit, f"MessagePack in a body must have at most {limit} values"
            )


def decode(decoder: msgspec.msgpack.Decoder[T], data: bytes, *, max_values: int) -> T:
    """Decode MessagePack, as `codec.decode` does JSON. A `Raw` in it is not decoded."""
    check_values(data, max_values)
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        sentence = str(error)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise malformed(error, data) from None
    except RecursionError:
        raise codec.too_deep() from None
    # What is no MessagePack is said first, wherever in the body it is.
    _parsed(data)
    raise codec.invalid(codec.field_error(sentence, decoder.type))


def malformed(error: Exception, data: bytes) -> Refusal:
    """The refusal of what a decoder takes for no MessagePack."""
    place = (
        ""
        if "(byte " in str(error) or isinstance(error, UnicodeDecodeError)
        else f" (byte {len(data)})"
    )
    return Refusal("malformed_request", f"the body is not MessagePack: {error}{place}")


def as_json(data: bytes, pointer: str, *, depth: int) -> bytes:
    """The JSON of a value, without white space. `depth`: how deep in the body it is.

    Of a key that a map has twice the last one counts. Raises Refusal: malformed_request, or
    validation_failed at `pointer` where something in it has no form as JSON.
    """
    value = _parsed(data)
    try:
        text = codec.encode(value)
    except TypeError:
        raise _no_form(pointer) from None
    except RecursionError:
        raise codec.too_deep() from None
    codec.check_depth(text, depth)
    # What JSON cannot say comes back as something else.
    if _decode_json(text) != value:
        raise _no_form(pointer)
    return text


def _no_form(pointer: str) -> Refusal:
    detail = (
        "has a value that JSON has not: binary, an extension, a number that is not finite, "
        "or a key that is no text"
    )
    return invalid_field(pointer, "wrong_type", detail)


def _parsed(data: bytes) -> Any:
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise malformed(error, data) from None
    except RecursionError:
        raise codec.too_deep() from None
