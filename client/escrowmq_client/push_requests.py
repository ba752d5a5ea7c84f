"""A message that the service pushes to a webhook: from the bytes of the request. Pure."""

from collections.abc import Mapping

from escrowmq_client.check_requests import RequestRefused, Secrets, read_signed
from escrowmq_client.models.consume import PushedMessage


def read_push(
    secrets: Secrets, headers: Mapping[str, str], body: bytes, *, now: float
) -> PushedMessage:
    """The message in a request. `secrets`: of the group. `now`: in seconds.

    Raises RequestRefused: 401 if the request is not signed with one of the secrets within 300 s,
    400 if the body is no message.
    """
    pushed = read_signed(secrets, headers, body, PushedMessage, now=now)
    if pushed.kind != "message.delivery":
        raise RequestRefused(400, f"a push is of the kind message.delivery, not {pushed.kind}")
    return pushed
