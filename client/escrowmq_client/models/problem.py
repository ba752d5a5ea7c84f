"""Problem documents (RFC 9457)."""

from msgspec import field

from escrowmq_client.models.base import Output


class FieldError(Output, frozen=True, kw_only=True):
    """An error of one field."""

    pointer: str
    code: str
    detail: str


class Problem(Output, frozen=True, kw_only=True):
    """Why a request was rejected (RFC 9457).

    A problem of one entry of a request has no `instance` and no `request_id`.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str
    retryable: bool
    instance: str | None = None
    request_id: str | None = None
    errors: list[FieldError] = field(default_factory=list[FieldError])
    context: dict[str, str] = field(default_factory=dict[str, str])
    retry_after_ms: int | None = None
    """How long to wait before the request is repeated."""
