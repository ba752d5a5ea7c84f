"""The body of a message or a reply, and the properties beside it."""

from base64 import b64decode
from typing import Any, TypeVar, overload

import msgspec

from escrowmq_client.models.base import Output

T = TypeVar("T")


class Content(Output, frozen=True, kw_only=True):
    """The body of a message or a reply, and the properties of its sender."""

    payload: str | None = None
    payload_encoding: str | None = None
    """Encoding of `payload`: utf8 or base64."""
    content_type: str | None = None
    properties: dict[str, str]

    @property
    def body(self) -> bytes:
        """The bytes of the body. Raises ValueError if it was requested with `payload="omit"`."""
        if self.payload is None:
            raise ValueError(
                "the body was not requested, or its record is damaged, or it cannot be decompressed"
            )
        if self.payload_encoding == "base64":
            return b64decode(self.payload)
        return self.payload.encode()

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    def json(self, type: Any = Any) -> Any:  # noqa: A002  the word of msgspec
        """Decode the body from JSON, into `type` if given (a dataclass, a Struct, a TypedDict ...).

        Raises msgspec.DecodeError if the body is not JSON, is nested too deeply, or not of that
        type.
        """
        body = self.body
        try:
            return msgspec.json.decode(body, type=type)
        except (UnicodeDecodeError, RecursionError) as error:
            raise msgspec.DecodeError(f"the body cannot be read as JSON: {error}") from error
