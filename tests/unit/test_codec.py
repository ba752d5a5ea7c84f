"""JSON values that are kept as they were sent: what is taken, what is refused, and what is left of
them.
"""

import json
import math

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.encoding import codec
from app.problems import Refusal

DEPTH = 3


@pytest.fixture(params=["built", "not built", "in pieces"], autouse=True, scope="module")
def _way(request):
    """The ways in which a value is checked: small ones are built, large ones are not, in pieces of
    every size.
    """
    patch = pytest.MonkeyPatch()
    if request.param != "built":
        patch.setattr(codec, "_BUILT_BYTES", 0)
    if request.param == "in pieces":
        patch.setattr(codec, "_PIECE_BYTES", 7)
    yield
    patch.undo()


def built(raw: bytes) -> object:
    """The value by a decoder that builds all of it.

    Raises ValueError where it is none that is taken.
    """
    try:
        value = msgspec.json.decode(raw)
        # msgspec takes whole numbers of any size; Python's own decoder shows which are too large.
        json.loads(raw, parse_int=_finite, parse_constant=_finite)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError(str(error)) from None
    if _depth(value) > codec.MAX_DEPTH - DEPTH:
        raise ValueError("too deep")
    return value


def _finite(token: str) -> float:
    if math.isinf(float(token)):
        raise ValueError(token)
    return float(token)


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def is_taken(raw: bytes) -> bool:
    try:
        codec.compact(raw, depth=DEPTH)
    except Refusal as refusal:
        if refusal.code != "malformed_request":
            raise
        return False
    return True


numbers = st.one_of(
    st.integers(),
    st.integers(min_value=300, max_value=308).map(lambda digits: 10**digits),
    st.floats(allow_nan=False, allow_infinity=False),
)
texts = st.text(st.sampled_from('\\"/,[{]}:e10 \n\té€😀'), max_size=12) | st.text(
    st.characters(codec="utf-8")
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
documents = st.builds(
    lambda value, is_ascii, indent: json.dumps(
        value, ensure_ascii=is_ascii, indent=indent
    ).encode(),
    values,
    st.booleans(),
    st.sampled_from([None, 2]),
)
# Bytes of which JSON is made, and what makes numbers, texts and UTF-8 wrong.
words = st.sampled_from(
    [
        *(
            b"[",
            b"]",
            b"{",
            b"}",
            b",",
            b":",
            b'"',
            b"\\",
            b"\\\\",
            b'\\"',
            b" ",
            b"\n",
            b"true",
            b"null",
            b"NaN",
            b"Infinity",
        ),
        *(
            b"\\ud800",
            b"\\udc00",
            b"\\u0041",
            b"\xff",
            b"\xc3",
            b"\xa9",
            b"\xed\xa0\x80",
            b"\x00",
            b"\xef\xbb\xbf",
        ),
        *(
            b"1",
            b"-",
            b".",
            b"e",
            b"E+",
            b"e309",
            b"1e308",
            b"0e999",
            b"1.8e308",
            b"-1.7976931348623159e308",
            b"e110",
        ),
        *(b"9" * 308, b"9" * 309, b"9" * 200, b"[" * 126, b"]" * 126),
    ]
)


@settings(deadline=None)
@given(raw=st.lists(words, max_size=12).map(b"".join))
@example(raw=b'"\\\\"')
@example(raw=b'["\\\\\\"[",1e400]')
@example(raw=b'"e999"')
@example(raw=b"[" * 125 + b"]" * 125)
@example(raw=b"[" * 126 + b"]" * 126)
@example(raw=b"[" * 2_000 + b"]" * 2_000)
@example(raw=b"17976931348623158" + b"0" * 292)
@example(raw=b"17976931348623159" + b"0" * 292)
def test_the_bytes_that_are_taken_are_those_of_which_every_value_can_be_built(raw):
    try:
        built(raw)
    except ValueError:
        assert not is_taken(raw)
    else:
        assert is_taken(raw)


@given(document=documents, at=st.integers(0), put=words)
def test_a_document_with_something_put_into_it_is_taken_where_it_can_be_built(document, at, put):
    at %= len(document) + 1
    raw = document[:at] + put + document[at:]
    try:
        built(raw)
    except ValueError:
        assert not is_taken(raw)
    else:
        assert is_taken(raw)


@given(document=documents)
def test_a_compact_value_is_the_same_without_white_space_and_stays_as_it_is(document):
    compacted = codec.compact(document, depth=0)

    assert json.loads(compacted, object_pairs_hook=list) == json.loads(
        document, object_pairs_hook=list
    )
    assert codec.compact(compacted, depth=0) == compacted
    if b'"' not in document:
        assert compacted == b"".join(document.split())


@pytest.mark.parametrize(
    "sent",
    [
        b'{"b":1,"a":2,"b":3}',
        b'"\\u0041\\/\\n"',
        b"1E5",
        b"-0",
        b"1.0",
        b"1e-400",
        b"0." + b"0" * 400 + b"1",
    ],
)
def test_order_repeated_keys_escapes_and_numbers_stay_as_they_were_sent(sent):
    assert (
        codec.compact(b' { "x" : [ ' + sent + b"\t,\r\n1 ] }", depth=0)
        == b'{"x":[' + sent + b",1]}"
    )


@given(value=values)
@example(value={"é\\": ["/", '"', "\x00\x1f\x7f\n", "\u2028😀", "\\u0041", "\\\\/"]})
def test_a_string_that_is_serialised_has_the_escapes_that_json_needs_and_no_others(value):
    def without_numbers(value: object) -> object:
        if isinstance(value, dict):
            return {key: without_numbers(item) for key, item in value.items()}
        if isinstance(value, list):
            return [without_numbers(item) for item in value]
        return value if isinstance(value, str) else None

    value = without_numbers(value)
    escaped = json.dumps(value).replace("/", "\\/").encode()

    assert codec.serialise(escaped, depth=0) == msgspec.json.encode(value)


@given(
    document=documents.map(lambda document: codec.compact(document, depth=0)),
    limit=st.integers(1, 40),
)
@example(document=b"[[],[]]", limit=4)
@example(document=b"[[],[]]", limit=5)
def test_values_over_the_limit_are_refused_and_what_strings_hold_is_not_counted(document, limit):
    def more_than_one(value: object) -> int:
        if not isinstance(value, dict | list):
            return 0
        inner = value.values() if isinstance(value, dict) else value
        return max(1, len(value)) + sum(map(more_than_one, inner))

    expected = 1 + more_than_one(json.loads(document))
    if expected <= limit:
        codec.check_values(document, limit)
        return
    with pytest.raises(Refusal) as refused:
        codec.check_values(document, limit)
    assert refused.value.code == "body_too_large"
    assert refused.value.context == {"limited": "values", "limit": str(limit)}


# --------------------------------------------------------------------------------------------------
# large answers


class Inner(msgspec.Struct):
    text: str
    left_out: str | msgspec.UnsetType = msgspec.UNSET
    attributes: dict[str, str] = {}


class Outer(msgspec.Struct, rename={"from_": "from"}):
    items: list[Inner]
    inner: Inner
    from_: int = 3
    texts: list[str] = []


@pytest.mark.parametrize("character", ["x", "\n", "\0", "ü", "😀", '"', "\\"])
def test_an_answer_in_pieces_is_the_json_of_the_answer_and_no_piece_is_large(character):
    small, large = Inner("small", attributes={"a": "b"}), Inner(character * 300_000)
    for answer in (
        Outer([small, large, small], large, texts=["a", character * 70_000]),
        Outer([small] * 3_000, small),
        Outer([], small),
    ):
        pieces = codec.encode_in_pieces(answer)

        assert b"".join(pieces) == msgspec.json.encode(answer)
        assert all(len(piece) <= 1 << 20 for piece in pieces)


@pytest.mark.parametrize("character", ["x", "ü", "€", "😀"])
def test_utf_8_is_decoded_in_pieces_wherever_they_are_cut(character):
    for shift in range(4):
        text = "x" * shift + character * (600_000 // len(character.encode()))
        assert codec.decode_text(text.encode()) == text
    with pytest.raises(UnicodeDecodeError):
        codec.decode_text(text.encode()[:-1] + b"\xff")
    with pytest.raises(UnicodeDecodeError):
        codec.decode_text(b"x" * 600_000 + "€".encode()[:-1])


class Typed(msgspec.Struct):
    texts: dict[str, str] = {}
    number: int | None = None


class TypedList(msgspec.Struct):
    items: list[Typed] = []
    flag: bool = False
    share: float = 0.0


@pytest.mark.parametrize(
    ("body", "pointer", "detail"),
    [
        ('{"items":[{},{"texts":{"a":"b","amount":7,"c":8}}]}', "/items/1/texts/amount",
         "Expected `string`, got `integer`"),
        ('{"items":[{"texts":{"a/b~":null}}]}', "/items/0/texts/a~1b~0",
         "Expected `string`, got `null`"),
        ('{"items":[{"texts":[]}]}', "/items/0/texts", "Expected `object`, got `array`"),
        ('{"items":[{"number":"1"}]}', "/items/0/number",
         "Expected `integer | null`, got `string`"),
        ('{"flag":1.5}', "/flag", "Expected `boolean`, got `number`"),
        ('{"share":true}', "/share", "Expected `number`, got `boolean`"),
    ],
)  # fmt: skip
def test_an_error_of_type_speaks_of_json_and_names_the_value(body, pointer, detail):
    with pytest.raises(Refusal) as refused:
        codec.decode(msgspec.json.Decoder(TypedList), body.encode())

    (error,) = refused.value.errors
    assert (error.pointer, error.code, error.detail) == (pointer, "wrong_type", detail)


@pytest.mark.parametrize(
    "raw",
    [
        rb'"\ud800"',
        rb'{"a": ["\\", "\ud800x"]}',
        rb'["\udC00\uD800"]',
        rb'"\ud83d\ude00 \ud83d"',
        rb'{"\udfff": 1}',
    ],
)
def test_json_with_half_of_a_surrogate_pair_is_said_to_be_no_text_and_not_to_be_no_json(raw):
    json.loads(raw)
    for read in (
        lambda: codec.compact(raw, depth=DEPTH),
        lambda: codec.read_json(raw),
        lambda: codec.decode(msgspec.json.Decoder(dict[str, str]), raw),
    ):
        with pytest.raises(Refusal) as refused:
            read()
        assert refused.value.code == "malformed_request"
        assert refused.value.detail.startswith("the body is JSON, but no Unicode text: ")
        assert refused.value.detail[-6:].lower().startswith(r"\ud")


def test_a_long_body_is_not_looked_through_for_half_of_a_surrogate_pair(monkeypatch):
    monkeypatch.setattr(codec, "_ESCAPE", None)

    with pytest.raises(Refusal) as refused:
        codec.compact(b'"' + rb"\n" * 10_000 + rb'\ud800"', depth=DEPTH)

    assert refused.value.detail.startswith("the body is not JSON: ")


@pytest.mark.parametrize(
    "raw",
    [
        rb'"\ud800',
        rb'"\ud8"',
        rb'["\ud800",]',
        rb'"\ud83d\ude00',
        rb'["\\ud800"',
        '"\ud800"'.encode("utf-8", "surrogatepass"),
    ],
)
def test_what_is_no_json_beside_half_of_a_surrogate_pair_is_said_to_be_no_json(raw):
    with pytest.raises(Refusal) as refused:
        codec.compact(raw, depth=DEPTH)
    assert refused.value.detail.startswith("the body is not JSON: ")
