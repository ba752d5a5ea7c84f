"""Spans of OpenTelemetry for calls and for messages that a worker handles.

    client = Client(hooks=OpenTelemetry())

The trace goes with a message: the service keeps the `traceparent` of the request that sent it among
its properties. This needs the package `opentelemetry-api`.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, TracerProvider

from escrowmq_client.call import Call
from escrowmq_client.models.consume import ReceivedMessage

_SENDING = frozenset(
    {
        "publishCloudEvent",
        "sendMessage",
        "sendMessageBatch",
        "sendMessageRaw",
        "sendMessageStream",
        "sendRequest",
    }
)


class OpenTelemetry:
    """Hooks that make spans. `tracer_provider`: the global one unless given."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("escrowmq_client", tracer_provider=tracer_provider)

    @contextmanager
    def on_call(self, call: Call[Any], headers: dict[str, str]) -> Generator[None, None, None]:
        """Make a span of a call with all its repetitions; its requests carry its trace."""
        kind = SpanKind.PRODUCER if call.operation in _SENDING else SpanKind.CLIENT
        attributes = {
            "messaging.system": "escrowmq",
            "messaging.operation.name": call.operation,
            "http.request.method": call.method,
            "url.template": call.route,
            **_destination(call.parts),
        }
        with self._tracer.start_as_current_span(call.operation, kind=kind, attributes=attributes):
            propagate.inject(headers)
            yield

    @contextmanager
    def on_message(self, group: str, message: ReceivedMessage) -> Generator[None, None, None]:
        """Make a span of the handling of a message, in the trace that sent it."""
        attributes = {
            "messaging.system": "escrowmq",
            "messaging.operation.name": "process",
            "messaging.destination.name": message.topic,
            "messaging.consumer.group.name": group,
            "messaging.message.id": message.message_id,
        }
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            context=propagate.extract(message.properties),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        ):
            yield


def _destination(parts: Mapping[str, str]) -> dict[str, str]:
    names = {"topic": "messaging.destination.name", "group": "messaging.consumer.group.name"}
    return {names[part]: value for part, value in parts.items() if part in names}
