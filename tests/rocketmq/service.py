"""EscrowMQ over HTTP, as the tests of this folder use it."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.support.http import ok, until
from tests.support.server import Server

Json = dict[str, Any]


class Service:
    """A service that runs, and its client."""

    def __init__(self, server: Server, client: httpx.Client) -> None:
        self.server, self.client = server, client

    def get(self, path: str, **parameters: Any) -> Any:
        return ok(self.client.get(f"/v1/{path}", params=parameters))

    def post(self, path: str, body: Json | None = None, status: int = 200) -> Any:
        return ok(self.client.post(f"/v1/{path}", json=body or {}), status)

    def put(self, path: str, body: Json) -> Any:
        answer = self.client.put(f"/v1/{path}", json=body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def send(self, topic: str, body: bytes, **fields: Any) -> Json:
        receipt: Json = self.post(f"topics/{topic}/messages", _message(body, fields), 201)
        return receipt

    def begin(self, group: str, transaction_id: str, *messages: Json) -> Json:
        body = {
            "transaction_id": transaction_id,
            "producer_group": group,
            "messages": list(messages),
            "check": {"first_after_ms": 3_600_000},
        }
        begun: Json = self.post("transactions", body, 201)
        return begun

    def decide(self, transaction_id: str, decision: str) -> Json:
        decided: Json = self.post(f"transactions/{transaction_id}/{decision}")
        return decided

    def state(self, transaction_id: str) -> str:
        return str(self.get(f"transactions/{transaction_id}")["state"])

    def pull(self, topic: str) -> list[Json]:
        """All messages of a topic, in the order of its queues, with their bodies as bytes."""
        found = []
        for queue in self.get(f"topics/{topic}/queues")["items"]:
            path = f"topics/{topic}/queues/{queue['queue_id']}/messages"
            offset = queue["min_offset"]
            while offset < queue["max_offset"]:
                pulled = self.get(path, offset=offset, max_messages=1_000, payload="base64")
                found += [_read(one) for one in pulled["messages"]]
                offset = pulled["next_offset"]
        return found

    def receive(self, group: str, *, wait_ms: int = 0) -> list[Json]:
        """Messages until there is none, under leases of an hour."""
        found: list[Json] = []
        while received := self.receive_once(group, max_messages=1_000, wait_ms=wait_ms):
            found += received
        return found

    def receive_once(self, group: str, **wanted: int) -> list[Json]:
        body = {"lease_ms": 3_600_000, "payload": "base64", **wanted}
        received = self.post(f"groups/{group}/receive", body)
        return [_read(one) for one in received["messages"]]

    def receive_keys(self, group: str, keys: set[str]) -> list[Json]:
        """Messages until those with all these keys have come."""
        found: list[Json] = []

        def all_came() -> bool:
            found.extend(self.receive(group, wait_ms=200))
            return keys <= {one.get("key") for one in found}

        until(all_came, f"{group} receives {keys}")
        return found

    def ack(self, group: str, *messages: Json) -> None:
        self._settle(group, "ack", messages)

    def nack(self, group: str, *messages: Json, delay_ms: int) -> None:
        self._settle(group, "nack", messages, delay_ms=delay_ms)

    def dead_letter(self, group: str, *messages: Json) -> None:
        self._settle(group, "dead-letter", messages, reason="refused")

    def offsets(self, group: str, topic: str) -> dict[str, int]:
        items = self.get(f"groups/{group}/offsets", topic=topic)["items"]
        return {str(one["queue_id"]): one["offset"] for one in items}

    def schedules(self) -> list[Json]:
        items: list[Json] = self.get("schedules", page_size=1_000)["items"]
        return items

    def deliver_now(self, schedule: Json) -> None:
        body = {"deliver_at": "2020-01-01T00:00:00.000Z"}
        ok(self.client.patch(f"/v1/schedules/{schedule['schedule_id']}", json=body))

    def cancel(self, schedule: Json) -> None:
        ok(self.client.delete(f"/v1/schedules/{schedule['schedule_id']}"))

    def stop(self) -> None:
        assert self.server.terminate() == 0, self.server.log()

    def _settle(self, group: str, verb: str, messages: tuple[Json, ...], **fields: Any) -> None:
        entries = [{"receipt_handle": one["receipt_handle"], **fields} for one in messages]
        settled = self.post(f"groups/{group}/{verb}", {"entries": entries})
        assert settled["rejected"] == 0, settled


@contextmanager
def service_on(server: Server) -> Iterator[Service]:
    with server.client() as client:
        yield Service(server, client)


def entry(topic: str, body: bytes, **fields: Any) -> Json:
    """A message of a transaction."""
    return {"topic": topic, "message": _message(body, fields)}


def _message(body: bytes, fields: Json) -> Json:
    return {"payload": base64.b64encode(body).decode(), "payload_encoding": "base64", **fields}


def _read(message: Json) -> Json:
    return {**message, "body": base64.b64decode(message["payload"])}
