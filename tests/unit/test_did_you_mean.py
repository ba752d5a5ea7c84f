"""What a refusal of a wrong name says would have been right."""

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import UNSET, Meta, UnsetType

from app.encoding import codec
from app.problems import Refusal


class Rule(msgspec.Struct, forbid_unknown_fields=True):
    on_exhausted: Literal["hold", "rollback"] | UnsetType = UNSET
    max_answers: int = 15


class Order(msgspec.Struct, forbid_unknown_fields=True, rename={"kind_": "kind"}):
    kind_: Literal["skip", "once"] | UnsetType = UNSET
    rule: Rule | UnsetType = UNSET
    rules: Annotated[list[Rule], Meta(max_length=9)] | UnsetType = UNSET
    by_name: dict[str, Rule] | UnsetType = UNSET


_decoder = msgspec.json.Decoder(Order)


def detail_of(body: bytes) -> str:
    with pytest.raises(Refusal) as refused:
        codec.decode(_decoder, body)
    (error,) = refused.value.errors
    return error.detail


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b'{"rul":{}}', "; did you mean `rule`?"),
        (b'{"kind_":"skip"}', "; did you mean `kind`?"),
        (b'{"rule":{"max_anwers":3}}', "; did you mean `max_answers`?"),
        (b'{"rules":[{},{"max_anwers":3}]}', "; did you mean `max_answers`?"),
        (b'{"rule":{"nonsense":3}}', "; there are max_answers, on_exhausted"),
    ],
)
def test_an_unknown_field_is_told_with_the_one_that_was_meant_or_those_that_there_are(body, hint):
    assert detail_of(body).endswith(hint)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b'{"kind":"never"}', ": it is one of once, skip"),
        (b'{"rule":{"on_exhausted":"drop"}}', ": it is one of hold, rollback"),
    ],
)
def test_a_choice_that_there_is_not_is_told_with_those_that_there_are(body, hint):
    assert detail_of(body).endswith(hint)


def test_where_the_place_is_not_known_nothing_is_made_up():
    assert (
        detail_of(b'{"by_name":{"a":{"max_anwers":3}}}')
        == "Object contains unknown field `max_anwers`"
    )


def test_a_name_of_megabytes_is_likened_to_nothing_and_cut_off():
    detail = detail_of(b'{"' + b"rule" * (1 << 18) + b'":1}')

    assert len(detail) == 500
    assert detail.endswith("; there are by_name, kind, rule, rules")


def test_a_parameter_of_a_query_is_told_as_a_field_is():
    with pytest.raises(Refusal) as refused:
        codec.convert({"max_anwers": "3"}, Rule, pointer="/query")

    (error,) = refused.value.errors
    assert (error.pointer, error.detail) == (
        "/query/max_anwers",
        "Object contains unknown field `max_anwers`; did you mean `max_answers`?",
    )
