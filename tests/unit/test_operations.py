"""An operation and its handler fit together, or their module cannot be imported."""

import msgspec
import pytest

from app.http.exchange import Call, Reply, reply
from app.messages import send
from app.operations import OPERATIONS, operation, operations_of
from app.services import Services


class Input(msgspec.Struct):
    """A body."""

    text: str


async def without_body(services: Services, call: Call, topic: str) -> Reply:
    """Answer."""
    return reply(200, {})


async def without_docstring(services: Services, call: Call, topic: str, given: Input) -> Reply:
    return reply(200, {})


async def complete(services: Services, call: Call, topic: str, given: Input) -> Reply:
    """Answer."""
    return reply(200, {})


def declare(handler, *, name="tryOut", example=None):
    return operation(
        "POST",
        "/v1/topics/{topic}",
        name,
        tag="topics",
        scopes=["operate"],
        answers={200: None},
        body=Input,
        example=example,
    )(handler)


@pytest.mark.parametrize(
    ("handler", "example", "reason"),
    [
        (without_body, {"text": "a"}, "takes 3 arguments, the operation has 4"),
        (without_docstring, {"text": "a"}, "no docstring"),
        (complete, None, "a body has an example"),
    ],
)
def test_a_handler_that_does_not_fit_its_operation_is_refused_when_it_is_declared(
    handler, example, reason
):
    with pytest.raises(AssertionError, match=reason):
        declare(handler, example=example)

    assert "tryOut" not in OPERATIONS


def test_two_operations_of_one_name_are_refused():
    (first, *_) = operations_of(send)

    with pytest.raises(AssertionError, match=f"two operations are called {first.operation_id}"):
        declare(complete, name=first.operation_id, example={"text": "a"})

    assert OPERATIONS[first.operation_id] is first
