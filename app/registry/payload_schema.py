"""The JSON Schema of a topic's messages, compiled once.

References to anything outside of the schema are refused, and nothing is ever fetched. Patterns are
those that can be matched in time linear in the text (no look-around, no back-references). The size
of a schema is limited when it is set, and the cost of a check has a bound (`schema_size.py`): a
check that is cheap for certain runs on the event loop, any other in a process with a limit of CPU
time (`schema_process.py`).
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import jsonschema_rs

from app.encoding import codec
from app.problems import FieldError, Refusal, invalid_field
from app.registry.schema_process import SchemaProcess
from app.registry.schema_size import SchemaTooLarge, measure

T = TypeVar("T")

MAX_SCHEMA_BYTES = 64 << 10
_ON_THE_LOOP_STEPS = 100_000  # at most 0.4 µs each, most of them 0.02: 40 ms
_ALL_ERRORS_STEPS = 3_000  # beyond this only the first error is worked out: each takes 14 µs
_COUNTED_BYTES = 256 << 10  # the levels of a longer document are not counted on the event loop
_MAX_ERRORS = 50  # of one message; the first ones tell enough
_MAX_PATTERN_BYTES = 4 << 20  # of one pattern, compiled
_MAX_SHOWN = 500
_MASK = "the value"  # a problem gives the reason and not what was sent

_verdicts: ContextVar["dict[bytes, list[FieldError]] | None"] = ContextVar("verdicts", default=None)


class ChecksPending(Exception):
    """Documents must be checked in the process of schemas before their messages can be built."""

    def __init__(self, checks: "list[Check]") -> None:
        self.checks = checks
        super().__init__(f"{len(checks)} documents")


class PayloadSchema:
    """Compiled JSON Schema of a topic. Immutable."""

    def __init__(self, text: bytes, *, pointer: str, process: SchemaProcess) -> None:
        """`text`: the schema as JSON; `pointer`: where it was given. Raises Refusal."""
        self._text = text
        self._process = process
        self._compiled = Compiled(text, pointer)

    def check(self, body: bytes, *, pointer: str) -> None:
        """Check a document. `pointer`: where it was given.

        Raises Refusal where it is no JSON or not what the schema wants, and ChecksPending where
        only the process may check it: `until_checked` does so and comes again.
        """
        if self._compiled.is_cheap_for(body):
            errors = self._compiled.errors(body)
        else:
            key = sha256(self._text).digest() + sha256(body).digest()
            found = (_verdicts.get() or {}).get(key)
            if found is None:
                raise ChecksPending([Check(self, body, key)])
            errors = found
        if errors:
            errors = [
                FieldError(f"{pointer}{error.pointer}"[:_MAX_SHOWN], error.code, error.detail)
                for error in errors
            ]
            raise Refusal(
                "validation_failed", f"{errors[0].pointer}: {errors[0].detail}", errors=errors
            )

    async def errors_by_process(self, body: bytes) -> list[FieldError]:
        """The errors of a document. Raises Backpressure."""
        return await self._process.errors(self._text, body)


class Check(NamedTuple):
    """A document that must be checked in the process.

    `key`: names the document and the schema; made beside the loop.
    """

    schema: PayloadSchema
    body: bytes
    key: bytes


class RefusedSchema:
    """A stored schema that is not taken any more: no message of its topic is, until it is
    changed.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def check(self, body: bytes, *, pointer: str) -> None:
        """Raises Refusal."""
        detail = f"the schema of the topic must be changed before it takes messages: {self._reason}"
        raise invalid_field(pointer, "limit_reached", detail)


async def until_checked(build: Callable[[], Awaitable[T]]) -> T:
    """The value of `build`, which is called again after each check that had to be made in the
    process of schemas.

    It changes nothing before its messages are built, and does not wait between that and the append.
    """
    verdicts: dict[bytes, list[FieldError]] = {}
    token = _verdicts.set(verdicts)
    try:
        while True:
            try:
                return await build()
            except ChecksPending as pending:
                checks = pending.checks
            for schema, body, key in checks:
                if key not in verdicts:
                    verdicts[key] = await schema.errors_by_process(body)
    finally:
        _verdicts.reset(token)


class Compiled:
    """A schema and the bound for the cost of its checks."""

    def __init__(self, text: bytes, pointer: str) -> None:
        """Raises Refusal."""
        if len(text) > MAX_SCHEMA_BYTES:
            raise invalid_field(
                pointer, "out_of_range", f"a schema has at most {MAX_SCHEMA_BYTES} bytes"
            )
        schema = codec.read_json(text, depth=2)
        if not isinstance(schema, dict | bool):
            raise invalid_field(pointer, "wrong_type", "a JSON Schema is an object, true or false")
        try:
            self.size = measure(schema)
        except SchemaTooLarge as error:
            raise invalid_field(
                pointer, "limit_reached", f"the schema is too large: {error}"
            ) from None
        options = jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN_BYTES)
        try:
            self._validator = jsonschema_rs.validator_for(
                schema, pattern_options=options, offline=True, mask=_MASK
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            reason = getattr(error, "message", str(error)).partition("\n")[0]
            detail = f"is no JSON Schema that is taken: {reason}"[:_MAX_SHOWN]
            raise invalid_field(pointer, "invalid_format", detail) from None

    def is_cheap_for(self, body: bytes) -> bool:
        """Report whether a check of the document certainly ends within a turn of the event loop."""
        return self.size.is_known and self._steps(body) <= _ON_THE_LOOP_STEPS

    def errors(self, body: bytes) -> list[FieldError]:
        """The errors of a document; their pointers begin at the document."""
        try:
            value = codec.read_json(body)
        except Refusal as refusal:
            return [FieldError("", "schema", f"the topic has a schema for JSON: {refusal.detail}")]
        if self._validator.is_valid(value):
            return []
        if self._steps(body) <= _ALL_ERRORS_STEPS:
            return [
                _field_error(error)
                for error in islice(self._validator.iter_errors(value), _MAX_ERRORS)
            ]
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [_field_error(error)]
        raise AssertionError("a value that is not valid has an error")

    def _steps(self, body: bytes) -> int:
        """An upper bound for the steps of a check of the document."""
        opened = body.count(b"[") + body.count(b"{")
        values = 1 + opened + body.count(b",")
        depth = min(opened, codec.MAX_DEPTH)
        if self.size.branching > 1 and opened > 1 and len(body) <= _COUNTED_BYTES:
            depth = codec.depth_of(body)
        return self.size.cost(values=values, size_bytes=len(body), depth=depth)


def _field_error(error: Any) -> FieldError:
    pointer = "".join([f"/{codec.escape(str(step))}" for step in error.instance_path])
    return FieldError(pointer[:_MAX_SHOWN], "schema", error.message[:_MAX_SHOWN])
