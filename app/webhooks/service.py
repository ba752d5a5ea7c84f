"""Checks by webhook: how a producer is asked.

What it becomes is for `txn/check_sender.py`.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from app.observability.metrics import Metrics
from app.registry.producer_groups import ProducerGroups
from app.registry.webhook import Webhook, WebhookSettings
from app.webhooks.answers import CheckQuestion, read_answer
from app.webhooks.options import WebhookOptions
from app.webhooks.received import Answer
from app.webhooks.signed_post import SignedPost
from storage.clock import Clock
from txn.open_checks import LeasedCheck
from txn.producer import Answered, Failed, Failure, Route

_NOT_ASKED = Failed(Failure.UNREACHABLE, "the group is not asked by webhook any more")
_WHAT = "a check"


class Webhooks:
    """The ProducerClient of groups with check_mode webhook. Event loop only."""

    def __init__(
        self, post: SignedPost, groups: ProducerGroups, clock: Clock, metrics: Metrics
    ) -> None:
        self._signed_post = post
        self._groups = groups
        self._clock = clock
        self._metrics = metrics

    @property
    def options(self) -> WebhookOptions:
        return self._signed_post.options

    async def check_url(self, text: str) -> None:
        """Raises CheckUrlRefused."""
        await self._signed_post.check_url(text, what=_WHAT, pointer="/check_url")

    def route(self, group: str) -> Route | None:
        webhook = self._groups.webhook_of(group)
        if webhook is None:
            return None
        return Route(self._signed_post.host(webhook.settings.url), webhook.settings.concurrency)

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
        if webhook is not None and self._signed_post.host(webhook.settings.url) == host:
            await self._groups.disable(group, webhook.settings)

    async def send_test(
        self, group: str, asked: CheckQuestion, *, secret: str | None, signed_before_ms: int
    ) -> Answer | Failed:
        """Send a question that no transaction needs; the response as received.

        `secret`: signs in place of the group's. `signed_before_ms`: age that the signature states.
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
            else read_answer(answer, now_ms=self._signed_post.receiver_clock.wall_ms())
        )

    async def _post(
        self,
        webhook: Webhook[WebhookSettings],
        asked: CheckQuestion,
        secrets: Sequence[str] | None,
        *,
        signed_before_ms: int = 0,
    ) -> Answer | Failed:
        """`secrets`: None for those of the group."""
        found = await self._signed_post.send(
            webhook,
            msgspec.json.encode(asked),
            webhook_id=asked.check_id,
            what=_WHAT,
            secrets=secrets,
            signed_before_ms=signed_before_ms,
        )
        if isinstance(found, Answer):
            return found
        return Failed(
            Failure.INVALID if found.is_invalid else Failure.UNREACHABLE,
            found.detail,
            is_timeout=found.is_timeout,
            blames_host=found.blames_host,
        )


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
