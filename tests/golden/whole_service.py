"""The whole service in this process, on a data directory and at a time that a test says."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from app.life.service_life import Phase, ServiceLifecycle
from app.main import create_app
from app.services import Services
from app.settings import Settings
from storage.local.options import LocalStoreOptions
from tests.support.clock import ManualClock
from tests.support.http import ok, reached

LOCAL = LocalStoreOptions(
    segment_bytes=1 << 16,
    queue_file_entries=100,
    prepare_ahead_bytes=1 << 16,
    index_slots=64,
    index_file_entries=2_000,
    scrub_bytes_per_second=0,
)


class WholeService:
    """A service that is open, and a client of its HTTP interface."""

    def __init__(
        self, lifecycle: ServiceLifecycle, api: httpx.AsyncClient, clock: ManualClock
    ) -> None:
        self.lifecycle = lifecycle
        self.api = api
        self.clock = clock

    @property
    def services(self) -> Services:
        return self.lifecycle.get_services()

    async def get(self, path: str, **query: Any) -> Any:
        return ok(await self.api.get(path, params=query))

    async def post(self, path: str, body: Any, *, status: int = 200, key: str | None = None) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        return ok(await self.api.post(path, json=body, headers=headers), status)

    async def repeat(self, request: dict[str, Any]) -> list[Any]:
        """Status and body of the answer to a request with a key that was sent before."""
        headers = {"Idempotency-Key": request["key"]}
        response = await self.api.post(request["path"], json=request["body"], headers=headers)
        return [response.status_code, response.json()]

    async def served(self, request_ids: Sequence[str]) -> dict[str, Any]:
        """The answer to each question about what is stored, by its path.

        Requests for a reply are not listed: these ids.
        """
        found: dict[str, Any] = {}
        for path in ("topics", "groups", "transactions", "tasks"):
            found[path] = await self.get(f"/v1/{path}", page_size=100)
        for kind, states in (
            ("message", "scheduled,delivered,cancelled"),
            ("cron", "scheduled,paused,cancelled"),
        ):
            path = f"schedules of {kind}"
            found[path] = await self.get("/v1/schedules", kind=kind, state=states, page_size=100)
            for schedule in found[path]["items"]:
                path = f"schedules/{schedule['schedule_id']}"
                found[path] = await self.get(f"/v1/{path}")
        for request_id in request_ids:
            found[f"requests/{request_id}"] = await self.get(f"/v1/requests/{request_id}")
        for topic in found["topics"]["items"]:
            found |= await self._served_of_topic(topic["topic"])
        for group in found["groups"]["items"]:
            for part in ("lag", "offsets", "leases", "dead-letters"):
                path = f"groups/{group['group']}/{part}"
                found[path] = await self.get(f"/v1/{path}")
        for transaction in found["transactions"]["items"]:
            path = f"transactions/{transaction['transaction_id']}"
            for part in ("", "/history", "/explain"):
                found[path + part] = await self.get(f"/v1/{path}{part}")
        return found

    async def _served_of_topic(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        queues = await self.get(f"/v1/topics/{topic}/queues")
        found[f"topics/{topic}/queues"] = queues
        for queue in queues["items"]:
            path = f"topics/{topic}/queues/{queue['queue_id']}/messages"
            page = found[path] = await self.get(f"/v1/{path}", offset=0, max_messages=1_000)
            for message in page["messages"]:
                if "key" in message:
                    query = {"topic": topic, "key": message["key"]}
                    found[f"messages?{topic}&{message['key']}"] = await self.get(
                        "/v1/messages", **query
                    )
                message_id = message["message_id"]
                found[f"messages/{message_id}"] = await self.get(f"/v1/messages/{message_id}")
        return found


@asynccontextmanager
async def whole_service(
    data_dir: Path, clock: ManualClock, local: LocalStoreOptions = LOCAL
) -> AsyncIterator[WholeService]:
    """Stopped in order at the end, with its snapshots written."""
    app = create_app(Settings(data_dir=data_dir, local=local), clock=clock)
    async with app.router.lifespan_context(app):
        lifecycle: ServiceLifecycle = app.state.lifecycle
        await reached(lambda: lifecycle.phase is not Phase.STARTING, "the service is open")
        assert lifecycle.phase is Phase.READY
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as api:
            yield WholeService(lifecycle, api, clock)
