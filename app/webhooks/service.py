"""Checks by webhook: where they may go, and how one is asked.

What it becomes is for `txn/check_sender.py`.
"""

import ssl
from collections.abc import Iterator, Sequence
from functools import lru_cache

import httpx
import msgspec
from msgspec import UNSET

from app.observability import Metrics
from app.registry.producer_groups import ProducerGroups, Webhook
from app.webhooks.allowed import read_allowed
from app.webhooks.answers import CheckQuestion, read_answer
from app.webhooks.options import WebhookOptions
from app.webhooks.transport import (
    MAX_ANSWER_BYTES,
    MOST_CONNECTIONS,
    AddressRefused,
    Answer,
    AnswerTooLong,
    WebhookTransport,
)
from app.webhooks.urls import Target, UrlRefused, parse_url
from escrowmq_client.webhooks import sign
from storage.clock import Clock
from storage.errors import CheckUrlRefused
from storage.files.vfs import is_out_of_files
from txn.open_checks import LeasedCheck
from txn.producer import Answered, Failed, Failure, Route

_LOOKUP_TIMEOUT_MS = 2_000
_TARGETS_KEPT = 10_000
_NOT_ASKED = Failed(Failure.UNREACHABLE, "the group is not asked by webhook any more")


class Webhooks:
    """The ProducerClient of groups with check_mode webhook. Event loop only."""

    def __init__(
        self,
        options: WebhookOptions,
        groups: ProducerGroups,
        clock: Clock,
        metrics: Metrics,
        *,
        version: str,
        receiver_clock: Clock | None = None,
        transport: WebhookTransport | None = None,
    ) -> None:
        """`receiver_clock`: signing time, where the own clock is virtual: receivers refuse old
        signatures.
        """
        self.options = options
        self._groups = groups
        self._clock = clock
        self._receiver_clock = receiver_clock or clock
        self._metrics = metrics
        allowed = read_allowed(options.allowed_hosts)
        self._transport = transport or WebhookTransport(
            allowed, most=options.max_connections or MOST_CONNECTIONS
        )
        self._headers = {"Content-Type": "application/json", "User-Agent": f"escrowmq/{version}"}
        self._parse = lru_cache(_TARGETS_KEPT)(lambda text: parse_url(text, allowed))

    async def check_url(self, text: str) -> None:
        """Raises CheckUrlRefused.

        A name that has no address today is taken: it is looked up again at each check.
        """
        try:
            await self._transport.check(self._parse(text), timeout_ms=_LOOKUP_TIMEOUT_MS)
        except (UrlRefused, AddressRefused) as error:
            raise CheckUrlRefused(f"a check may not be sent there: {error}") from None

    def route(self, group: str) -> Route | None:
        webhook = self._groups.webhook_of(group)
        if webhook is None:
            return None
        return Route(self._host(webhook.settings.check_url), webhook.settings.concurrency)

    def timeout_ms(self, group: str) -> int:
        """How long a try may take; 0 where the group is not asked."""
        webhook = self._groups.webhook_of(group)
        return 0 if webhook is None else webhook.settings.timeout_ms

    async def ask(self, group: str, check: LeasedCheck) -> Answered | Failed:
        began_ms = self._clock.monotonic_ms()
        outcome = await self._ask(group, check)
        outcome = outcome._replace(latency_ms=self._clock.monotonic_ms() - began_ms)
        if isinstance(outcome, Answered):
            self._metrics.checks_answered.labels(outcome.decision.value).inc()
        self._metrics.checks_sent.labels(
            "answered" if isinstance(outcome, Answered) else outcome.why.value
        ).inc()
        return outcome

    async def disable(self, group: str, host: str) -> None:
        webhook = self._groups.webhook_of(group)
        if webhook is not None and self._host(webhook.settings.check_url) == host:
            await self._groups.disable(group, webhook.settings)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def send_test(
        self, group: str, asked: CheckQuestion, *, secret: str | None, signed_before_ms: int
    ) -> Answer | Failed:
        """Send a question that no transaction needs; what came back, as it came.

        `secret`: signed with it instead of the group's. `signed_before_ms`: how long ago, as it
        says.
        """
        webhook = self._groups.webhook_of(group)
        if webhook is None:
            return _NOT_ASKED
        secrets = None if secret is None else [secret]
        return await self._post(webhook, asked, secrets, signed_before_ms=signed_before_ms)

    async def _ask(self, group: str, check: LeasedCheck) -> Answered | Failed:
        webhook = self._groups.webhook_of(group)
        if webhook is None:
            return _NOT_ASKED
        answer = await self._post(webhook, question(check, self._clock.wall_ms()), None)
        return (
            answer
            if isinstance(answer, Failed)
            else read_answer(answer, now_ms=self._receiver_clock.wall_ms())
        )

    async def _post(
        self,
        webhook: Webhook,
        asked: CheckQuestion,
        secrets: Sequence[str] | None,
        *,
        signed_before_ms: int = 0,
    ) -> Answer | Failed:
        """`secrets`: None for those of the group."""
        timeout_ms = webhook.settings.timeout_ms
        body = msgspec.json.encode(asked)
        secrets = webhook.secrets(self._clock.wall_ms()) if secrets is None else secrets
        signed_ms = self._receiver_clock.wall_ms() - signed_before_ms
        signed = sign(secrets, webhook_id=asked.check_id, timestamp=signed_ms // 1000, body=body)
        try:
            target = self._parse(webhook.settings.check_url)
            return await self._transport.post(
                target, self._headers | signed, body, timeout_ms=timeout_ms
            )
        except (UrlRefused, AddressRefused) as error:
            return Failed(Failure.UNREACHABLE, f"a check may not be sent there: {error}")
        except AnswerTooLong:
            return Failed(Failure.INVALID, f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        except TimeoutError:
            return Failed(
                Failure.UNREACHABLE,
                f"no answer within {timeout_ms} ms",
                is_timeout=True,
                blames_host=True,
            )
        except (OSError, httpx.HTTPError) as error:
            # the host is not to blame for our descriptors
            is_ours = any(is_out_of_files(one) for one in _causes(error))
            return Failed(Failure.UNREACHABLE, _reason(error), blames_host=not is_ours)

    def _host(self, url: str) -> str:
        try:
            target: Target = self._parse(url)
        except UrlRefused:  # the operator has listed it once, and does not any more
            return ""
        return f"{target.host}:{target.port}"


def _causes(error: BaseException | None) -> Iterator[Exception]:
    """The error and what it was raised from: httpx wraps what the system said."""
    while isinstance(error, Exception):
        yield error
        error = error.__cause__ or error.__context__


def question(check: LeasedCheck, now_ms: int) -> CheckQuestion:
    """The body of the check of a transaction."""
    transaction = check.transaction
    return CheckQuestion(
        check_id=check.check_id,
        transaction_id=transaction.transaction_id,
        business_key=transaction.business_key or UNSET,
        age_ms=max(0, now_ms - transaction.prepared_at_ms),
        answer_number=transaction.answers + 1,
    )


def _reason(error: Exception) -> str:
    """Reason of a transport error, without internal addresses."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate does not hold: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    kinds: dict[type[Exception], str] = {
        httpx.ConnectError: "the host does not accept the connection",
        httpx.RemoteProtocolError: "it does not speak HTTP",
        httpx.ReadError: "the connection was cut",
        httpx.WriteError: "the connection was cut",
    }
    if isinstance(error, OSError):
        return "its name has no address"
    return kinds.get(type(error), type(error).__name__)
