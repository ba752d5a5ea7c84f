"""JSON in and out: one strict decoder for every body, and the refusals it leads to.

Schemas are msgspec structs: decoded four times faster than pydantic would (docs/decisions/0004),
and strict without being asked: no NaN, no lone surrogates, no unknown fields, no null, no number
for a text.

msgspec holds the GIL for the whole of a call, so what one call may cost is bounded: by the bytes of
a body, and by the number of its values (`check_values`). A large value is checked and compacted
without building an object for each of its values.
"""

import math
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from app.encoding import did_you_mean
from app.problems import FieldError, Refusal, invalid_field, too_large

T = TypeVar("T")

MAX_DEPTH = 128
MAX_VALUES = 100_000  # to build them takes some 20 ms in one call of msgspec

encode = msgspec.json.encode
_decode_any = msgspec.json.Decoder().decode

_PLACE = re.compile(r" - at `(?P<key>key` in `)?\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
_TYPES = re.compile(r"\b(Expected|got) `([^`]*)`")
_WORD = re.compile(r"\w+")
# JSON's words for types, in place of Python's
_WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_NAMED_FIELD = re.compile(r"(?:unknown|required) field `([^`]*)`")
# a value up to here is checked by decoding it, which is cheaper than any other look at it
_BUILT_BYTES = 32 << 10
_PIECE_BYTES = 256 << 10
TEXT_PIECE = 64 << 10  # characters of a text that are encoded in one call: at most six bytes each
_QUOTE, _BACKSLASH = b'"\\'
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 309  # digits of the largest double
_LITERALS = (b"true", b"false")
_COMMAS = bytes.maketrans(b'[]{}:"', b",,,,,,")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')  # possessive: a long string needs no memory
_SHORT_BYTES = 16_384  # of a body: it is looked through, escape by escape, in milliseconds
# an escape in a string; the group is half of a surrogate pair, without the other half
_ESCAPE = re.compile(
    rb"\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
_STEPS = np.zeros(256, np.int8)  # one level deeper, one up
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_WHOLE_NUMBER = re.compile("-?[0-9]+")
_MAX_SHOWN = 500  # of a name that a client chose
# the seconds that RFC 3339 has texts for: the years 1 to 9999
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799

# msgspec's sentences, by what they begin with or hold, and the code that the field error gets.
_CODES: tuple[tuple[str, str], ...] = (
    ("unknown field", "unknown_field"),
    ("missing required field", "missing"),
    ("of length", "out_of_range"),
    ("<=", "out_of_range"),
    (">=", "out_of_range"),
    ("matching regex", "invalid_format"),
    ("Invalid enum value", "not_allowed"),
    ("Invalid RFC3339", "invalid_format"),
    ("Invalid base64", "invalid_format"),
)


def decode(decoder: msgspec.json.Decoder[T], raw: bytes, *, max_values: int = MAX_VALUES) -> T:
    """The body, or a Refusal: malformed_request where it is no JSON, validation_failed where a
    field is wrong.
    """
    if len(raw) > max_values:
        check_values(raw, max_values)
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        sentence = str(error)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(raw, error) from None
    except RecursionError:
        raise too_deep() from None
    # What is no JSON is reported first, wherever in the body it is.
    compact(raw, depth=0)
    field = field_error(sentence, decoder.type)
    name = _wrong_name(sentence, raw)
    if name is not None:
        pointer = f"{field.pointer}/{escape(name)}"[:_MAX_SHOWN]
        field = msgspec.structs.replace(field, pointer=pointer)
    raise invalid(field)


def _wrong_name(sentence: str, raw: bytes) -> str | None:
    """The name of the first value that is no string in a map of strings, which msgspec's sentence
    does not name; None where the sentence is about something else.
    """
    place = _PLACE.search(sentence)
    if place is None or place["key"] or not place["path"].endswith("[...]"):
        return None
    value = read_json(raw)
    for step in _STEP.finditer(place["path"].removesuffix("[...]")):
        value = value[step[1] or int(step[2])]
    return next((name for name, item in value.items() if not isinstance(item, str)), None)


def decode_as(raw: bytes, kind: Any, max_values: int) -> Any:
    """Decode a body, as `decode` does, with the decoder of a class."""
    return decode(_decoder(kind), raw, max_values=max_values)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def encode_in_pieces(value: msgspec.Struct) -> list[bytes]:
    """The JSON of a struct in pieces of some `_PIECE_BYTES`, none of them made in one long call of
    msgspec.
    """
    return in_pieces(encoded(value))


def in_pieces(parts: Iterable[bytes]) -> list[bytes]:
    """Parts of a text, joined to pieces of some `_PIECE_BYTES`."""
    pieces: list[bytes] = []
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= _PIECE_BYTES:
            pieces.append(b"".join(waiting))
            waiting, size = [], 0
    return [*pieces, b"".join(waiting)]


def encoded(value: Any) -> Iterator[bytes]:
    """The JSON of a value in parts: structs and lists item by item where they hold something large,
    long texts cut.
    """
    if isinstance(value, str) and len(value) > TEXT_PIECE:
        yield b'"'
        for start in range(0, len(value), TEXT_PIECE):
            yield encode(value[start : start + TEXT_PIECE])[1:-1]
        yield b'"'
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield b"," if index else b"["
            yield from encoded(item)
        yield b"]" if value else b"[]"
    elif isinstance(value, msgspec.Struct) and any(
        map(_may_be_large, fields := msgspec.structs.asdict(value).values())
    ):
        names = [
            name
            for name, field in zip(value.__struct_encode_fields__, fields, strict=True)
            if field is not msgspec.UNSET
        ]
        given = [field for field in fields if field is not msgspec.UNSET]
        for index, (name, field) in enumerate(zip(names, given, strict=True)):
            yield (b"," if index else b"{") + encode(name) + b":"
            yield from encoded(field)
        yield b"}"
    else:
        yield encode(value)


def _may_be_large(value: Any) -> bool:
    return isinstance(value, list | msgspec.Struct) or (
        isinstance(value, str) and len(value) > TEXT_PIECE
    )


def decode_text(raw: bytes) -> str:
    """UTF-8 as a text, decoded in pieces, as each holds the GIL. Raises UnicodeDecodeError."""
    if len(raw) <= _PIECE_BYTES:
        return raw.decode()
    decoder = getincrementaldecoder("utf-8")()
    pieces = range(0, len(raw), _PIECE_BYTES)
    return "".join(
        [
            decoder.decode(raw[at : at + _PIECE_BYTES], at + _PIECE_BYTES >= len(raw))
            for at in pieces
        ]
    )


def invalid(field: FieldError) -> Refusal:
    return Refusal(
        "validation_failed", f"{field.pointer or 'the body'}: {field.detail}", errors=[field]
    )


def read_json(raw: bytes, *, depth: int = 0) -> Any:
    """Any JSON value as objects. `depth`: its depth in the body.

    Raises Refusal malformed_request. The caller limits the number of values, which the event loop
    has to wait for.
    """
    check_depth(raw, depth)
    value = _parsed(_decode_any, raw)
    if len(raw) >= len(_LONG_NUMBER) and _LONG_NUMBER in raw.translate(_ZEROS):
        _check_numbers(raw)
    return value


def compact(raw: bytes, *, depth: int) -> bytes:
    """A JSON value without white space; order, repeated keys, numbers and escapes do not change.

    `depth`: its depth in the body. Raises Refusal malformed_request.
    """
    if len(raw) <= _BUILT_BYTES:
        read_json(raw, depth=depth)
        return msgspec.json.format(raw, indent=-1)
    check_depth(raw, depth)
    text = _parsed(_formatted, raw)
    _check_numbers(text)
    return text


def serialise(raw: bytes, *, depth: int) -> bytes:
    """A JSON value as stored in a message: compact, in UTF-8. Strings have no escapes but those
    that JSON requires; order, repeated keys and numbers do not change.

    `depth`: its depth in the body. Raises Refusal malformed_request.
    """
    text = compact(raw, depth=depth)
    if b"\\u" in text or b"\\/" in text:
        return _STRING.sub(_unescaped, text)
    return text


def _unescaped(string: re.Match[bytes]) -> bytes:
    text = string[0]
    return encode(_decode_any(text)) if b"\\" in text else text


def _formatted(raw: bytes) -> bytes:
    """Checks what `format` leaves out as well: whether all of it is UTF-8."""
    if not raw.isascii():
        raw.decode()
    return msgspec.json.format(raw, indent=-1)


def _parsed(parse: Callable[[bytes], T], raw: bytes) -> T:
    try:
        return parse(raw)
    except msgspec.ValidationError:
        raise _too_large_number() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(raw, error) from None
    except RecursionError:
        raise too_deep() from None


def _unreadable(raw: bytes, error: Exception) -> Refusal:
    """The refusal of a body that is no JSON, or, where it is short, JSON with strings that are no
    text.
    """
    escapes = _ESCAPE.finditer(raw) if len(raw) <= _SHORT_BYTES else ()
    half = next((found[1] for found in escapes if found[1]), None)
    if half is not None and _is_json(_ESCAPE.sub(_made_whole, raw)):
        detail = f"the body is JSON, but no Unicode text: half of a surrogate pair, {half.decode()}"
    else:
        detail = f"the body is not JSON: {error}"
    return Refusal("malformed_request", detail)


def _made_whole(escape: re.Match[bytes]) -> bytes:
    return rb"\uFFFD" if escape[1] else escape[0]


def _is_json(raw: bytes) -> bool:
    try:
        _formatted(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _check_numbers(text: bytes) -> None:
    """Raise Refusal malformed_request where a number is larger than a double holds.

    `text`: valid JSON.
    """
    for token in b"".join(_outside_of_strings(text)).translate(_COMMAS).split(b","):
        is_candidate = len(token) >= len(_LONG_NUMBER) or b"e" in token or b"E" in token
        if is_candidate and token.strip() not in _LITERALS and math.isinf(float(token)):
            raise _too_large_number()


def _too_large_number() -> Refusal:
    return Refusal("malformed_request", "a number is outside the range of a double")


def too_deep() -> Refusal:
    return Refusal("malformed_request", f"the body is nested deeper than {MAX_DEPTH} levels")


def convert(values: dict[str, Any], kind: type[T], *, pointer: str) -> T:
    """Texts (of a query, of headers) as the struct; a Refusal where one is wrong."""
    for name in _whole_numbers(cast("Any", kind)) & values.keys():
        if not _WHOLE_NUMBER.fullmatch(values[name]):
            raise invalid(FieldError(f"{pointer}/{name}", "wrong_type", "must be a whole number"))
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(field_error(str(error), kind, pointer)) from None


@cache
def _whole_numbers(kind: type) -> frozenset[str]:
    """The fields that take one, by the names they have outside.

    Left alone, msgspec takes 1.0 for 1, too.
    """
    found = msgspec.inspect.type_info(kind)
    assert isinstance(found, msgspec.inspect.StructType)
    return frozenset(field.encode_name for field in found.fields if _is_whole_number(field.type))


def _is_whole_number(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(map(_is_whole_number, kind.types))
    if isinstance(kind, msgspec.inspect.Metadata):
        return _is_whole_number(kind.type)
    return isinstance(kind, msgspec.inspect.IntType)


def field_error(text: str, kind: Any, pointer: str = "") -> FieldError:
    """Field error from the text of a msgspec error: the JSON pointer and a sentence.

    `pointer`: the place of the value in the request.
    """
    place = _PLACE.search(text)
    detail = text[: place.start()] if place else text
    found = _STEP.finditer(place["path"]) if place else ()
    path = [step[1] or step[2] for step in found if step[1] or step[2]]
    detail = _TYPES.sub(_in_words_of_json, detail)
    code = next((code for sign, code in _CODES if sign in detail), "wrong_type")
    hint = did_you_mean.of_choice(kind, path) if code == "not_allowed" else ""
    named = _NAMED_FIELD.search(detail)
    if named:
        hint = did_you_mean.of_field(kind, path, named[1]) if code == "unknown_field" else ""
        path.append(named[1])
    pointer += "".join([f"/{escape(step)}" for step in path])
    return FieldError(pointer[:_MAX_SHOWN], code, detail[: _MAX_SHOWN - len(hint)] + hint)


def _in_words_of_json(found: re.Match[str]) -> str:
    types = _WORD.sub(lambda word: _WORDS.get(word[0], word[0]), found[2])
    return f"{found[1]} `{types}`"


def escape(name: str) -> str:
    """A name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def check_values(text: bytes, limit: int) -> None:
    """Raise Refusal body_too_large where JSON has more values than `limit`, or malformed_request
    where those that were counted are nested too deep.

    A list or object counts as one more.
    """
    pieces = range(0, len(text), _PIECE_BYTES)
    if sum([_separators(text[start : start + _PIECE_BYTES]) for start in pieces]) < limit:
        return
    found, level = 1, 0
    for piece in _outside_of_strings(text):
        found += _separators(piece)
        deepest, level = _levels(piece, level)
        check_levels(deepest, 0)
        if found > limit:
            raise too_large("values", limit, f"JSON in a body must have at most {limit} values")


def _separators(text: bytes) -> int:
    """Each value but the first has one before it: a comma, or the bracket of which it is
    the first.
    """
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def check_depth(text: bytes, depth: int) -> None:
    """Raise Refusal malformed_request.

    A body may hold millions of brackets, so none is looked at by itself.
    """
    left = MAX_DEPTH - depth
    if text.count(b"[") + text.count(b"{") <= left:
        return
    check_levels(depth_of(text), depth)


def check_levels(levels: int, depth: int) -> None:
    """Raise Refusal malformed_request where a value of so many levels is too deep."""
    if levels > MAX_DEPTH - depth:
        raise too_deep()


def levels_of(text: bytes) -> int:
    """The result of `depth_of`, or the number of arrays and objects if they are few."""
    opened = text.count(b"[") + text.count(b"{")
    return opened if opened <= MAX_DEPTH // 2 else depth_of(text)


def depth_of(text: bytes) -> int:
    """How many arrays and objects of a JSON text are open at once, at most."""
    level = deepest = 0
    for piece in _outside_of_strings(text):
        deepest_here, level = _levels(piece, level)
        deepest = max(deepest, deepest_here)
    return deepest


def _levels(piece: bytes, level: int) -> tuple[int, int]:
    """The deepest level in a piece that begins at a level, and the level at its end."""
    levels = np.cumsum(_STEPS[np.frombuffer(piece, np.uint8)], dtype=np.int32) + level
    return int(levels.max(initial=0)), int(levels[-1]) if len(levels) else level


def _outside_of_strings(text: bytes) -> Iterator[bytes]:
    """JSON piece by piece, without what its strings hold; their quotes stay.

    NumPy releases the GIL for most of the work.
    """
    in_string = np.uint8(0)
    is_escaped = False  # the first byte of the piece, by a backslash before it
    for start in range(0, len(text), _PIECE_BYTES):
        piece = np.frombuffer(text, np.uint8, min(_PIECE_BYTES, len(text) - start), start)
        quotes = piece == _QUOTE
        backslashes = piece == _BACKSLASH
        if is_escaped or backslashes.any():
            # A run of backslashes escapes what follows where it is odd; one that began before the
            # piece counts as one.
            edges = np.flatnonzero(
                np.diff(np.concatenate(([False, is_escaped], backslashes, [False])))
            )
            starts, ends = edges[::2], edges[1::2]
            escaped = ends[(ends - starts) % 2 == 1] - 1
            is_escaped = bool(len(escaped)) and int(escaped[-1]) == len(piece)
            quotes[escaped[: len(escaped) - is_escaped]] = False
        inside = np.bitwise_xor.accumulate(quotes.view(np.uint8)) ^ in_string
        in_string = inside[-1]
        yield piece[quotes | (inside == 0)].tobytes()


# --------------------------------------------------------------------------------------------------
# times


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    # a year has four digits, which strftime does not see to
    shown = min(max(seconds, _FIRST_SECOND), _LAST_SECOND)
    return datetime.fromtimestamp(shown, UTC).isoformat()[:19]


@lru_cache(maxsize=1024)
def rfc3339(wall_ms: int) -> str:
    """UTC with milliseconds, as every time of the API.

    A time behind the year 9999, which a long duration leads to, is shown as the end of that year.
    """
    seconds, ms = divmod(wall_ms, 1000)
    return f"{_second(seconds)}.{ms:03d}Z"


def parse_time(text: str, pointer: str) -> int:
    """An RFC 3339 time as wall milliseconds; one before the year 1, by its offset, as the
    beginning of that. Raises Refusal, also for one behind the year 9999.
    """
    try:
        moment = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise invalid_field(
            pointer,
            "invalid_format",
            "must be an RFC 3339 time with an offset, as 2026-03-02T10:15:00.000Z",
        )
    seconds = max(moment.timestamp(), _FIRST_SECOND)
    if seconds >= _LAST_SECOND + 1:
        raise invalid_field(pointer, "out_of_range", "must be before the year 10000, in UTC")
    return int(seconds * 1000)
