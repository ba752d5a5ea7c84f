"""The events of the CloudEvents project for conformance of implementations
(github.com/cloudevents/conformance, its HTTP feature and its minimal events): what comes in, in
each mode, goes out with the same attributes and data.
"""

import json
from typing import Any

import httpx
import pytest

from tests.support.http import ok

MINIMAL = {
    "specversion": "1.0",
    "type": "io.cloudevents.minimum",
    "source": "//github.com/cloudevents/cloudeventsconformance/yaml/v1.yaml",
}
SOME = {
    "specversion": "1.0",
    "type": "com.example.someevent",
    "time": "2018-04-05T03:56:24Z",
    "source": "/mycontext/subcontext",
}
HELLO = {"message": "Hello World!"}
WORLD = "Hello, \U0001f30e!"
EVENTS: list[dict[str, Any]] = [
    SOME | {"id": "1234-1234-1234", "datacontenttype": "application/json", "data": HELLO},
    SOME
    | {"id": "1234-1234-1235", "datacontenttype": "application/json; charset=utf-8", "data": HELLO},
    SOME
    | {
        "id": "4321-4321-4321",
        "datacontenttype": "application/json",
        "comexampleextension1": "value",
        "comexampleextension2": '{"othervalue": 5}',
        "data": {"world": "hello"},
    },
    *(
        MINIMAL | {"id": f"conformance-000{number}", "datacontenttype": kind, "data": data}
        for number, kind, data in (
            (1, "text/plain; charset=us-ascii", "Hello, World!\n"),
            (2, "text/plain; charset=utf-8", WORLD + "\n"),
            (3, "application/json; charset=utf-8", WORLD),
            (4, "application/json; charset=utf-8", {"msg": WORLD}),
            (5, "application/json; charset=utf-8", ["Hello", "\U0001f30e!"]),
            (6, "application/xml; charset=utf-8", f"<msg>{WORLD}</msg>\n"),
        )
    ),
]
MODES = [
    "binary",
    "application/cloudevents+json",
    "application/cloudevents+json; charset=utf-8",
    "application/cloudevents-batch+json",
]


def publish(api: httpx.Client, topic: str, event: dict[str, Any], mode: str) -> httpx.Response:
    path = f"/v1/topics/{topic}/events"
    if mode != "binary":
        content = json.dumps([event] if "batch" in mode else event)
        return api.post(path, content=content, headers={"Content-Type": mode})
    attributes = dict(event)
    kind, data = attributes.pop("datacontenttype"), attributes.pop("data")
    content = json.dumps(data) if "json" in kind else data
    headers = {f"ce-{name}": text for name, text in attributes.items()}
    return api.post(path, content=content, headers=headers | {"Content-Type": kind})


@pytest.mark.parametrize("mode", MODES)
def test_an_event_goes_out_as_it_came_in_whatever_the_mode(api, topic, mode):
    group = f"/v1/groups/{topic}"
    ok(api.put(group, json={"topics": [{"topic": topic}]}), 201)

    for event in EVENTS:
        ok(publish(api, topic, event, mode), 201)

    found = ok(api.post(f"{group}/receive", json={"format": "cloudevents"}))["events"]
    for one in found:
        assert one.pop("leasehandle")
        assert one.pop("attempt") == 1
    assert found == EVENTS
