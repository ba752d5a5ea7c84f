"""JSON in and out: one strict decoder for every body, and the refusals it leads to.

Schemas are msgspec structs: decoded four times faster than pydantic would (docs/decisions/0004), and strict without being
asked: no NaN, no lone surrogates, no unknown fields, no null, no number for a text.
"""

import math
import re
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from app import hints
from app.problems import FieldError, Refusal, invalid_field

T = TypeVar("T")

MAX_DEPTH = 128

encode = msgspec.json.encode

_PLACE = re.compile(r" - at `(?P<key>key` in `)?\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
_NAMED_FIELD = re.compile(r"(?:unknown|required) field `([^`]*)`")
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{309}")  # the largest double has 309 digits
_NUMBER_OR_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9][0-9.eE+-]*+')
_STEPS = np.zeros(256, np.int8)  # one level deeper, one up
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_WHOLE_NUMBER = re.compile("-?[0-9]+")
_MAX_SHOWN = 500  # of a name that somebody made up

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


def decode(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """The body, or a Refusal: malformed_request where it is no JSON, validation_failed where a field is wrong."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        sentence = str(error)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal("malformed_request", f"the body is not JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    # What is no JSON is said first, wherever in the body it stands.
    read_json(raw)
    raise _invalid(field_error(sentence, decoder.type))


def _invalid(field: FieldError) -> Refusal:
    return Refusal("validation_failed", f"{field.pointer or 'the body'}: {field.detail}", errors=[field])


def read_json(raw: bytes, *, depth: int = 0) -> Any:
    """Any JSON value. `depth`: how deep in the body it stands. Raises Refusal malformed_request."""
    check_depth(raw, depth)
    try:
        value = msgspec.json.decode(raw)
    except msgspec.ValidationError:
        raise _too_large_number() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal("malformed_request", f"the body is not JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    if len(raw) > 308 and _LONG_NUMBER.search(raw):
        for token in _NUMBER_OR_TEXT.finditer(raw):
            if len(token[0]) > 308 and token[0][0] != 0x22 and math.isinf(float(token[0])):
                raise _too_large_number()
    return value


def _too_large_number() -> Refusal:
    return Refusal("malformed_request", "a number is larger than a double holds")


def _too_deep() -> Refusal:
    return Refusal("malformed_request", f"the body is nested deeper than {MAX_DEPTH} levels")


def convert(values: dict[str, Any], kind: type[T], *, pointer: str) -> T:
    """Texts (of a query, of headers) as the struct; a Refusal where one is wrong."""
    for name in _whole_numbers(cast("Any", kind)) & values.keys():
        if not _WHOLE_NUMBER.fullmatch(values[name]):
            raise _invalid(FieldError(f"{pointer}/{name}", "wrong_type", "must be a whole number"))
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(field_error(str(error), kind, pointer)) from None


@cache
def _whole_numbers(kind: type) -> frozenset[str]:
    """The fields that take one, by the names they have outside. Left alone, msgspec takes 1.0 for 1, too."""
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
    """What msgspec says of a value that was to be of this kind, as the JSON pointer of the field and a sentence.

    `pointer`: where in the request the value stands.
    """
    place = _PLACE.search(text)
    detail = text[: place.start()] if place else text
    found = _STEP.finditer(place["path"]) if place else ()
    path = [step[1] or step[2] for step in found if step[1] or step[2]]
    code = next((code for sign, code in _CODES if sign in detail), "wrong_type")
    hint = hints.of_choice(kind, path) if code == "not_allowed" else ""
    named = _NAMED_FIELD.search(detail)
    if named:
        hint = hints.of_field(kind, path, named[1]) if code == "unknown_field" else ""
        path.append(named[1])
    pointer += "".join([f"/{escape(step)}" for step in path])
    return FieldError(pointer[:_MAX_SHOWN], code, detail[: _MAX_SHOWN - len(hint)] + hint)


def escape(name: str) -> str:
    """A name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def compact(raw: msgspec.Raw, *, depth: int) -> bytes:
    """A JSON value re-serialised without white space, keys in their order. `depth`: how deep in the body it stands.

    Raises Refusal malformed_request.
    """
    return encode(read_json(bytes(raw), depth=depth))


def check_depth(text: bytes, depth: int) -> None:
    """Raises Refusal malformed_request. A body may hold millions of brackets, so there is no loop here."""
    left = MAX_DEPTH - depth
    if text.count(b"[") + text.count(b"{") <= left:
        return
    if depth_of(text) > left:
        raise _too_deep()


def depth_of(text: bytes) -> int:
    """How many arrays and objects of a JSON text are open at once, at most."""
    outside_of_texts = b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    steps = _STEPS[np.frombuffer(outside_of_texts, np.uint8)]
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


# ----------------------------------------------------------------------------------------------------------------- times


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]  # a year has four digits, which strftime does not see to


@lru_cache(maxsize=1024)
def rfc3339(wall_ms: int) -> str:
    """UTC with milliseconds, as every time of the API."""
    seconds, ms = divmod(wall_ms, 1000)
    return f"{_second(seconds)}.{ms:03d}Z"


def parse_time(text: str, pointer: str) -> int:
    """An RFC 3339 time as wall milliseconds. Raises Refusal."""
    try:
        moment = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise invalid_field(pointer, "invalid_format", "must be an RFC 3339 time with an offset, as 2026-03-02T10:15:00.000Z")
    return int(moment.timestamp() * 1000)
