"""Spans of the client, as a tracer of OpenTelemetry gets them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags

from escrowmq_client import Client, Worker
from escrowmq_client.telemetry import OpenTelemetry

PATIENCE_S = 60


class Recording(trace.TracerProvider, trace.Tracer):
    """Keeps what was begun, with the trace that it belongs to."""

    def __init__(self) -> None:
        self._ids = count(1)
        self.spans: list[tuple[str, SpanKind, int, dict[str, Any]]] = []

    def get_tracer(self, *args: Any, **options: Any) -> trace.Tracer:
        return self

    def start_span(self, name: str, context: Any = None, kind: Any = None, **options: Any) -> Any:
        above = trace.get_current_span(context).get_span_context()
        trace_id = above.trace_id if above.is_valid else next(self._ids)
        self.spans.append((name, kind, trace_id, dict(options["attributes"])))
        flags = TraceFlags(TraceFlags.SAMPLED)
        return NonRecordingSpan(
            SpanContext(trace_id, next(self._ids), is_remote=False, trace_flags=flags)
        )

    @contextmanager
    def start_as_current_span(self, *args: Any, **options: Any) -> Iterator[Any]:
        with trace.use_span(self.start_span(*args, **options)) as span:
            yield span


def test_the_trace_of_a_send_goes_on_where_its_message_is_handled(server, http, topic, group):
    tracer = Recording()
    client = Client(server.url, http=http, hooks=OpenTelemetry(tracer))
    receipt = client.send(topic, json=1)
    handled = threading.Event()
    worker = Worker(client, group, lambda _: handled.set(), wait_ms=200)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert handled.wait(PATIENCE_S)
    worker.stop()
    thread.join(PATIENCE_S)

    (sent,) = [span for span in tracer.spans if span[0] == "sendMessage"]
    (handling,) = [span for span in tracer.spans if span[0] == f"process {topic}"]
    assert (sent[1], handling[1]) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent[2] == handling[2]
    assert sent[3]["messaging.destination.name"] == topic
    assert sent[3]["url.template"] == "/v1/topics/{topic}/messages"
    assert handling[3]["messaging.message.id"] == receipt.message_id
