"""What the JSON of a topic's messages must be: a JSON Schema, compiled once.

It is its own: a reference to anything outside of it is refused, and nothing is ever fetched. Patterns are those that can be
matched in time linear in the text (no look-around, no back-references), so that no message can keep the service busy with one.
"""

from itertools import islice

import jsonschema_rs

from app import codec
from app.problems import FieldError, Refusal, invalid_field

MAX_SCHEMA_BYTES = 64 << 10
_MAX_ERRORS = 50  # of one message; the first ones tell enough
_MAX_SHOWN = 500
_MASK = "the value"  # what is told is why, and not what somebody sent


class PayloadSchema:
    """Immutable."""

    def __init__(self, text: bytes, *, pointer: str) -> None:
        """`text`: the schema as JSON; `pointer`: where it was given. Raises Refusal."""
        if len(text) > MAX_SCHEMA_BYTES:
            raise invalid_field(pointer, "out_of_range", f"a schema has at most {MAX_SCHEMA_BYTES} bytes")
        schema = codec.read_json(text, depth=2)
        if not isinstance(schema, dict | bool):
            raise invalid_field(pointer, "wrong_type", "a JSON Schema is an object, true or false")
        try:
            self._validator = jsonschema_rs.validator_for(
                schema, pattern_options=jsonschema_rs.RegexOptions(), offline=True, mask=_MASK
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            reason = getattr(error, "message", str(error)).partition("\n")[0]
            raise invalid_field(pointer, "invalid_format", f"is no JSON Schema that is taken: {reason}"[:_MAX_SHOWN]) from None

    def check(self, body: bytes, *, pointer: str) -> None:
        """`pointer`: where the body was given. Raises Refusal: it is no JSON, or not what the schema wants."""
        try:
            value = codec.read_json(body)
        except Refusal as refusal:
            raise invalid_field(pointer, "schema", f"the topic has a schema for JSON: {refusal.detail}") from None
        if self._validator.is_valid(value):
            return
        errors = [
            FieldError(_place(pointer, error.instance_path), "schema", error.message[:_MAX_SHOWN])
            for error in islice(self._validator.iter_errors(value), _MAX_ERRORS)
        ]
        detail = f"{errors[0].pointer}: {errors[0].detail}"
        raise Refusal("validation_failed", detail, errors=errors)


def _place(pointer: str, path: list[str | int]) -> str:
    steps = "".join([f"/{codec.escape(str(step))}" for step in path])
    return f"{pointer}{steps}"[:_MAX_SHOWN]
