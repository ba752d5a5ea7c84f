"""Signed requests to endpoints of users: where they may go, and why nothing came back."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from app.registry.webhook import Webhook
from app.webhooks.allowed import read_allowed
from app.webhooks.options import WebhookOptions
from app.webhooks.received import MAX_ANSWER_BYTES, Answer, AnswerTooLong, PostFailed
from app.webhooks.resolver import AddressRefused
from app.webhooks.transport import MOST_CONNECTIONS, WebhookTransport
from app.webhooks.urls import UrlRefused, parse_url
from escrowmq_client.webhooks import sign
from storage.clock import Clock
from storage.errors import CheckUrlRefused
from storage.files.vfs import is_out_of_files

_LOOKUP_TIMEOUT_MS = 2_000
_TARGETS_KEPT = 10_000


class NoAnswer(NamedTuple):
    """Why a request got no answer. `blames_host`: others would fare no better there."""

    detail: str
    is_invalid: bool = False  # something came back, and it was no answer
    is_timeout: bool = False
    blames_host: bool = False


class SignedPost:
    """Sends requests that are signed according to Standard Webhooks. Event loop only."""

    def __init__(
        self,
        options: WebhookOptions,
        clock: Clock,
        *,
        version: str,
        receiver_clock: Clock | None = None,
        transport: WebhookTransport | None = None,
    ) -> None:
        """`receiver_clock`: signing time, where the own clock is virtual: receivers refuse old
        signatures.
        """
        self.options = options
        self.receiver_clock = receiver_clock or clock
        self.most_connections = options.max_connections or MOST_CONNECTIONS
        self._clock = clock
        allowed = read_allowed(options.allowed_hosts)
        self._transport = transport or WebhookTransport(allowed, most=self.most_connections)
        self._headers = {"Content-Type": "application/json", "User-Agent": f"escrowmq/{version}"}
        self._parse = lru_cache(_TARGETS_KEPT)(lambda text: parse_url(text, allowed))

    async def check_url(self, text: str, *, what: str, pointer: str) -> None:
        """Raises CheckUrlRefused. `what`: is sent there.

        A name that has no address today is taken: it is looked up again at each request.
        """
        try:
            await self._transport.check(self._parse(text), timeout_ms=_LOOKUP_TIMEOUT_MS)
        except (UrlRefused, AddressRefused) as error:
            raise CheckUrlRefused(
                f"{what} may not be sent there: {error}", pointer=pointer
            ) from None

    def host(self, url: str) -> str:
        """The host and port of a URL; empty where the operator does not allow it any more."""
        try:
            target = self._parse(url)
        except UrlRefused:
            return ""
        return f"{target.host}:{target.port}"

    async def send(
        self,
        webhook: Webhook[Any],
        body: bytes,
        *,
        webhook_id: str,
        what: str,
        headers: Mapping[str, str] | None = None,
        secrets: Sequence[str] | None = None,
        signed_before_ms: int = 0,
    ) -> Answer | NoAnswer:
        """Send one request; the response as received.

        `what`: the thing sent, for messages to people. `secrets`: None for those of the webhook.
        `signed_before_ms`: age that the signature states.
        """
        timeout_ms = webhook.settings.timeout_ms
        secrets = webhook.secrets(self._clock.wall_ms()) if secrets is None else secrets
        signed_ms = self.receiver_clock.wall_ms() - signed_before_ms
        signed = sign(secrets, webhook_id=webhook_id, timestamp=signed_ms // 1000, body=body)
        try:
            return await self._transport.post(
                self._parse(webhook.settings.url),
                self._headers | dict(headers or {}) | signed,
                body,
                timeout_ms=timeout_ms,
            )
        except (UrlRefused, AddressRefused) as error:
            return NoAnswer(f"{what} may not be sent there: {error}")
        except AnswerTooLong:
            return NoAnswer(f"the answer is longer than {MAX_ANSWER_BYTES} bytes", is_invalid=True)
        except TimeoutError:
            return NoAnswer(f"no answer within {timeout_ms} ms", is_timeout=True, blames_host=True)
        except PostFailed as error:
            # the host is not to blame for our descriptors
            is_ours = any(is_out_of_files(one) for one in _causes(error))
            return NoAnswer(str(error), blames_host=not is_ours)

    async def aclose(self) -> None:
        await self._transport.aclose()


def _causes(error: BaseException | None) -> Iterator[Exception]:
    """The error and what it was raised from: it wraps what the system said."""
    while isinstance(error, Exception):
        yield error
        error = error.__cause__ or error.__context__
