"""SQL92 conditions over the properties of a message: parsed and checked once, then plain functions.

Pure.

    a > 5 AND (b BETWEEN 0 AND 9.5 OR c IN ('x', 'y')) AND NOT d IS NULL AND TAGS = 'paid' AND e
    STARTSWITH 'eu-'

A condition is true, false or unknown (None), and only what is true lets a message pass. A property
that the message has not is NULL, and whatever is asked of it but IS NULL is unknown. Properties are
texts: beside a number they count as numbers, beside TRUE or FALSE as truth values, and one that is
neither makes the comparison unknown; so no evaluation fails.

The grammar is LALR(1), read without recursion in a time that grows with the length; nesting is
limited, since conditions call each other. It is RocketMQ's (SelectorParser.jj): as there, nothing
but numbers has an order, and there is no LIKE. It differs where RocketMQ's reading would surprise:
NOT binds weaker than a comparison, as in SQL; what is asked of a missing property is unknown on
whichever side it stands; a text that is no number makes one comparison unknown and not all of the
condition false.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from storage.errors import InvalidFilter
from storage.message import Message

MAX_DEPTH = 128

Condition = Callable[[Message], bool | None]

_GRAMMAR = r"""
?start: either
?either: both ("OR"i both)*
?both: negated ("AND"i negated)*
?negated: test | "NOT"i negated                              -> negation
?test: operand
     | operand COMPARISON operand                            -> comparison
     | operand "IS"i NULL                                    -> is_null
     | operand "IS"i "NOT"i NULL                             -> is_not_null
     | operand "BETWEEN"i operand "AND"i operand             -> between
     | operand "NOT"i "BETWEEN"i operand "AND"i operand      -> not_between
     | operand "IN"i "(" literal ("," literal)* ")"          -> one_of
     | operand "NOT"i "IN"i "(" literal ("," literal)* ")"   -> none_of
     | operand SEARCH literal                                -> search
     | operand "NOT"i SEARCH literal                         -> not_search
?operand: literal | NAME -> name | QUOTED -> quoted | "(" either ")" -> group
?literal: NUMBER -> number | TEXT -> text | TRUTH -> truth | NULL -> null

NULL: "NULL"i
TRUTH.2: /(TRUE|FALSE)(?![a-z0-9_$])/i
COMPARISON: /<=|>=|<>|=|<|>/
SEARCH.2: /(CONTAINS|STARTSWITH|ENDSWITH)(?![a-z0-9_$])/i
NUMBER: /[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?/i
TEXT: /'(?:[^']|'')*'/
NAME: /[a-z_$][a-z0-9_$]*/i
QUOTED: /"(?:[^"]|"")+"/
%ignore /[ \t\r\n\f]+/
"""

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_TRUTHS = {"true": True, "false": False}
_LONGEST_TRUTH = max(map(len, _TRUTHS))
_NUMBER = re.compile(r"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d+)?", re.ASCII)
_MOST_SHOWN = 50
_SHORT = 18  # digits
_MOST_DIGITS = 400  # of a property that is read as a whole number; a longer one counts as a double


def compile_condition(expression: str) -> Callable[[Message], bool]:
    """Is the condition true of a message?

    Raises InvalidFilter, with the position of what is wrong, counted from 1.
    """
    try:
        condition = _condition(cast("_Operand", _parser.parse(expression)))
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        raise InvalidFilter(
            f"{expression[at : at + 1]!r} is not expected here", position=at + 1
        ) from None
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise InvalidFilter(
                "the expression ends too early", position=len(expression) + 1
            ) from None
        shown = str(error.token)[:_MOST_SHOWN]
        raise InvalidFilter(
            f"{shown!r} is not expected here", position=_start(error.token) + 1
        ) from None

    def matches(message: Message) -> bool:
        return condition(message) is True

    return matches


# --------------------------------------------------------------------------------------------------
# operands


class _Kind(Enum):
    NUMBER = "a number"
    TEXT = "a text"
    TRUTH = "a truth value"
    NULL = "NULL"
    PROPERTY = "a property"
    CONDITION = "a condition"


class _Operand(NamedTuple):
    """A part of an expression. `value`: of a literal; `read`: what a message has of the others."""

    kind: _Kind
    at: int  # where it begins, from 0
    depth: int = 0
    value: Any = None
    read: Callable[[Message], Any] = lambda message: None


def _refuse(operand: _Operand, detail: str) -> NoReturn:
    raise InvalidFilter(detail, position=operand.at + 1)


def _number(text: str | None) -> int | float | None:
    """The number that a text represents; None if it is not a number."""
    if text is None:
        return None
    if len(text) <= _SHORT and text.isascii() and text.isdigit():
        return int(text)  # most are; it saves two thirds of the time
    return _read_as_number(text)


@lru_cache(maxsize=64)  # hundreds of comparisons with one long property read it once
def _read_as_number(text: str) -> int | float | None:
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    # As it is where it is whole: a double would take neighbours of 16 digits for one.
    return int(text) if found.lastindex is None and len(text) <= _MOST_DIGITS else float(text)


def _truth(text: str | None) -> bool | None:
    return None if text is None or len(text) > _LONGEST_TRUTH else _TRUTHS.get(text.lower())


def _always(value: Any) -> Callable[[Message], Any]:
    return lambda message: value


def _read_number(operand: _Operand) -> Callable[[Message], int | float | None]:
    if operand.kind is _Kind.PROPERTY:
        read = operand.read
        return lambda message: _number(read(message))
    if operand.kind not in (_Kind.NUMBER, _Kind.TEXT):
        _refuse(operand, f"{operand.kind.value} is not compared with a number")
    return _always(operand.value if operand.kind is _Kind.NUMBER else _number(operand.value))


def _read_truth(operand: _Operand) -> Condition:
    if operand.kind is _Kind.CONDITION:
        return operand.read
    if operand.kind is _Kind.PROPERTY:
        read = operand.read
        return lambda message: _truth(read(message))
    if operand.kind not in (_Kind.TRUTH, _Kind.NULL):
        _refuse(operand, f"{operand.kind.value} is neither true nor false")
    return _always(operand.value)


def _read_text(operand: _Operand) -> Callable[[Message], str | None]:
    return operand.read if operand.kind is _Kind.PROPERTY else _always(operand.value)


def _condition(operand: _Operand) -> Condition:
    """The operand where a condition is wanted: a property is one, too, as RocketMQ has it."""
    return _read_truth(operand)


# --------------------------------------------------------------------------------------------------
# conditions


def _all(conditions: list[Condition]) -> Condition:
    def all_(message: Message) -> bool | None:
        known: bool | None = True
        for condition in conditions:
            value = condition(message)
            if value is False:
                return False
            if value is None:
                known = None
        return known

    return all_


def _any(conditions: list[Condition]) -> Condition:
    def any_(message: Message) -> bool | None:
        known: bool | None = False
        for condition in conditions:
            value = condition(message)
            if value:
                return True
            if value is None:
                known = None
        return known

    return any_


def _not(condition: Condition) -> Condition:
    def not_(message: Message) -> bool | None:
        value = condition(message)
        return None if value is None else not value

    return not_


def _compared(
    left: Callable[[Message], Any],
    compare: Callable[[Any, Any], bool],
    right: Callable[[Message], Any],
) -> Condition:
    def compared(message: Message) -> bool | None:
        one, other = left(message), right(message)
        return None if one is None or other is None else compare(one, other)

    return compared


def _comparison(left: _Operand, symbol: str, right: _Operand) -> Condition:
    """Which of the three readings applies is settled here, once."""
    kinds = {left.kind, right.kind}
    has_order = symbol not in ("=", "<>")
    for operand in (left, right):
        if operand.kind is _Kind.NULL:
            _refuse(operand, "nothing is compared with NULL; ask IS NULL")
        if has_order:
            _check_order(operand)
    read: Callable[[_Operand], Callable[[Message], Any]] = _read_text
    if has_order or _Kind.NUMBER in kinds:
        read = _read_number
    elif kinds & {_Kind.TRUTH, _Kind.CONDITION}:
        read = _read_truth
    return _compared(read(left), _COMPARISONS[symbol], read(right))


def _check_order(operand: _Operand) -> None:
    if operand.kind not in (_Kind.NUMBER, _Kind.PROPERTY):
        _refuse(operand, f"{operand.kind.value} has no order; only numbers have")


def _between(
    value: Callable[[Message], Any], low: Callable[[Message], Any], high: Callable[[Message], Any]
) -> Condition:
    """`value >= low AND value <= high`: false as soon as one of the two is, even where the other is
    unknown.
    """

    def between(message: Message) -> bool | None:
        number = value(message)
        if number is None:
            return None
        least, most = low(message), high(message)
        if (least is not None and number < least) or (most is not None and number > most):
            return False
        return None if least is None or most is None else True

    return between


def _one_of(subject: _Operand, literals: Iterable[_Operand]) -> Condition:
    texts, numbers = set(), set()
    for literal in literals:
        if literal.kind is _Kind.TEXT:
            texts.add(literal.value)
        elif literal.kind is _Kind.NUMBER:
            numbers.add(literal.value)
        else:
            _refuse(literal, "IN lists texts and numbers")
    read = _property(subject, "IN")

    def one_of(message: Message) -> bool | None:
        text = read(message)
        if text is None or text in texts:
            return None if text is None else True
        if not numbers:
            return False
        number = _number(text)
        return None if number is None else number in numbers

    return one_of


def _property(operand: _Operand, word: str) -> Callable[[Message], str | None]:
    if operand.kind is not _Kind.PROPERTY:
        _refuse(operand, f"{word} asks about a property, this is {operand.kind.value}")
    return operand.read


# --------------------------------------------------------------------------------------------------
# parser


@v_args(inline=True)
class _Compiler(Transformer[Token, _Operand]):
    """Called while the parser goes, from the innermost part out."""

    # Literals and names.

    def number(self, token: Token) -> _Operand:
        text = str(token)
        value = _number(text)
        if value is None or math.isinf(value):
            raise InvalidFilter(
                "the number is outside the range of a double", position=_start(token) + 1
            )
        return _Operand(_Kind.NUMBER, _start(token), value=value)

    def text(self, token: Token) -> _Operand:
        return _Operand(_Kind.TEXT, _start(token), value=token[1:-1].replace("''", "'"))

    def name(self, token: Token) -> _Operand:
        return _named(str(token), _start(token))

    def quoted(self, token: Token) -> _Operand:
        return _named(token[1:-1].replace('""', '"'), _start(token))

    def truth(self, token: Token) -> _Operand:
        return _Operand(_Kind.TRUTH, _start(token), value=_TRUTHS[token.lower()])

    def null(self, token: Token) -> _Operand:
        return _Operand(_Kind.NULL, _start(token))

    def group(self, inner: _Operand) -> _Operand:
        return _deeper(inner, inner)

    # Conditions, the loosest first.

    def either(self, *parts: _Operand) -> _Operand:
        return _made(_any([_condition(part) for part in parts]), *parts)

    def both(self, *parts: _Operand) -> _Operand:
        return _made(_all([_condition(part) for part in parts]), *parts)

    def negation(self, part: _Operand) -> _Operand:
        return _deeper(_made(_not(_condition(part)), part), part)

    def comparison(self, left: _Operand, symbol: Token, right: _Operand) -> _Operand:
        return _made(_comparison(left, symbol, right), left, right)

    def is_null(self, operand: _Operand, _: Token) -> _Operand:
        read = operand.read if operand.kind is _Kind.PROPERTY else _condition(operand)
        return _made(lambda message: read(message) is None, operand)

    def is_not_null(self, operand: _Operand, null: Token) -> _Operand:
        return _made(_not(self.is_null(operand, null).read), operand)

    def between(self, operand: _Operand, low: _Operand, high: _Operand) -> _Operand:
        if low.kind is high.kind is _Kind.NUMBER and low.value > high.value:
            _refuse(low, f"{low.value} to {high.value} is an empty range")
        for part in (operand, low, high):
            _check_order(part)
        return _made(
            _between(_read_number(operand), _read_number(low), _read_number(high)),
            operand,
            low,
            high,
        )

    def not_between(self, operand: _Operand, low: _Operand, high: _Operand) -> _Operand:
        return _made(_not(self.between(operand, low, high).read), operand, low, high)

    def one_of(self, operand: _Operand, *literals: _Operand) -> _Operand:
        return _made(_one_of(operand, literals), operand)

    def none_of(self, operand: _Operand, *literals: _Operand) -> _Operand:
        return _made(_not(_one_of(operand, literals)), operand)

    def search(self, operand: _Operand, word: Token, sought: _Operand) -> _Operand:
        if sought.kind is not _Kind.TEXT:
            _refuse(sought, f"{word} looks for a text, this is {sought.kind.value}")
        return _made(
            _compared(_property(operand, word), _SEARCHES[word.upper()], _always(sought.value)),
            operand,
        )

    def not_search(self, operand: _Operand, word: Token, sought: _Operand) -> _Operand:
        return _made(_not(self.search(operand, word, sought).read), operand)


def _named(name: str, at: int) -> _Operand:
    """TAGS and KEYS are the tag and the key, as in RocketMQ; every other name is a property of the
    sender's.
    """
    if name == "TAGS":
        return _Operand(_Kind.PROPERTY, at, read=lambda message: message.tag)
    if name == "KEYS":
        return _Operand(_Kind.PROPERTY, at, read=lambda message: message.key)
    return _Operand(_Kind.PROPERTY, at, read=lambda message: message.properties.get(name))


def _made(condition: Condition, *of: _Operand) -> _Operand:
    return _Operand(
        _Kind.CONDITION, of[0].at, depth=max(operand.depth for operand in of), read=condition
    )


def _deeper(operand: _Operand, inner: _Operand) -> _Operand:
    depth = inner.depth + 1
    if depth > MAX_DEPTH:
        raise InvalidFilter(
            f"the expression is nested deeper than {MAX_DEPTH} levels",
            position=inner.at + 1,
            code="out_of_range",
        )
    return operand._replace(depth=depth)


def _start(token: Token) -> int:
    assert token.start_pos is not None
    return token.start_pos


_parser = Lark(
    _GRAMMAR,
    parser="lalr",
    lexer="basic",
    g_regex_flags=re.ASCII,
    transformer=_Compiler(),
    maybe_placeholders=False,
)
