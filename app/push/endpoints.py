"""Endpoints of consumers: what a message becomes there, and what an answer means."""

from collections.abc import Iterable

import msgspec

from app.consume.handlers import event_extensions, json_of_received
from app.consume.schemas import ReceivedMessage
from app.encoding import codec
from app.events.writing import write_binary, write_structured
from app.observability.metrics import Metrics
from app.registry.consumer_groups import ConsumerGroups
from app.webhooks.answers import read_retry_after
from app.webhooks.received import Answer
from app.webhooks.signed_post import SignedPost
from app.word_sets import PushFormat, PushKind
from delivery.push import PushFailure, PushRoute
from delivery.receive.receive import LeasedMessage

_KIND = "message.delivery"
_TOO_MANY, _GONE = 429, 410
_OTHERS_WOULD_FAIL = (408, 425, _TOO_MANY)


class PushedMessage(msgspec.Struct, kw_only=True):
    """A message of a group, signed according to Standard Webhooks.

    The webhook-id is the message_id in every attempt.
    """

    kind: PushKind = "message.delivery"
    group: str
    message: ReceivedMessage


class PushEndpoints:
    """The PushClient of groups with a webhook. Event loop only."""

    def __init__(self, post: SignedPost, groups: ConsumerGroups, metrics: Metrics) -> None:
        self._signed_post = post
        self._groups = groups
        self._metrics = metrics

    def groups(self) -> Iterable[str]:
        return self._groups.pushed()

    def route(self, group: str) -> PushRoute | None:
        webhook = self._groups.webhook_of(group)
        if webhook is None:
            return None
        settings = webhook.settings
        return PushRoute(
            self._signed_post.host(settings.url), settings.concurrency, settings.timeout_ms
        )

    async def push(self, group: str, message: LeasedMessage) -> PushFailure | None:
        webhook = self._groups.webhook_of(group)
        if webhook is None:
            return PushFailure("messages of the group are not pushed any more", is_busy=True)
        headers, body = _written(group, message, webhook.settings.format)
        answer = await self._signed_post.send(
            webhook, body, webhook_id=message.message.message_id, what="messages", headers=headers
        )
        if isinstance(answer, Answer):
            failure = read_failure(answer, now_ms=self._signed_post.receiver_clock.wall_ms())
        else:
            failure = PushFailure(answer.detail, blames_host=not answer.is_invalid)
        self._count(failure, was_answered=isinstance(answer, Answer))
        return failure

    async def disable(self, group: str, host: str) -> None:
        webhook = self._groups.webhook_of(group)
        if webhook is not None and self._signed_post.host(webhook.settings.url) == host:
            await self._groups.disable_webhook(group, webhook.settings)

    def _count(self, failure: PushFailure | None, *, was_answered: bool) -> None:
        outcome = "refused" if was_answered else "unreachable"
        if failure is None:
            outcome = "accepted"
            self._metrics.messages_out.inc()
        self._metrics.pushes.labels(outcome).inc()


def _written(group: str, leased: LeasedMessage, form: PushFormat) -> tuple[dict[str, str], bytes]:
    """(headers, body) of the request."""
    if form == "message":
        body = b'{"kind":"%b","group":%b,"message":%b}' % (
            _KIND.encode(),
            codec.encode(group),
            json_of_received(leased, "auto"),
        )
        return {}, body
    write = write_structured if form == "cloudevents" else write_binary
    return write(leased.message, event_extensions(leased))


def read_failure(answer: Answer, *, now_ms: int) -> PushFailure | None:
    """Why the endpoint did not take the message; None where it did, with any 2xx."""
    status = answer.status
    if 200 <= status < 300:
        return None
    return PushFailure(
        f"status {status}",
        retry_after_ms=read_retry_after(answer.headers.get("retry-after"), now_ms),
        is_busy=status == _TOO_MANY,
        is_gone=status == _GONE,
        blames_host=status >= 500 or status in _OTHERS_WOULD_FAIL,
    )
