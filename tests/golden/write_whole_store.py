"""Writes the data directories of tests/golden/escrowmq-1-whole: `python -m
tests.golden.write_whole_store FOLDER`.

Everything that a service stores is made through its HTTP interface, with every kind of table in it.
The answers that it gave at the end are written beside the store: another version must give the same
ones.
"""

import asyncio
import io
import json
import lzma
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.golden.whole_service import WholeService, whole_service
from tests.support.clock import ManualClock
from tests.support.http import ok

WALL_MS = 1_760_000_000_000
HOUR_MS = 3_600_000
NEVER = {"first_after_ms": 1_000 * HOUR_MS}
SOON = {"first_after_ms": 10, "interval_ms": 10, "max_answers": 1}


class Writer:
    """Fills a service; `keyed` are the requests that may be repeated, `request_ids` those that wait
    for replies.
    """

    def __init__(self, service: WholeService) -> None:
        self.service = service
        self.keyed: list[dict[str, Any]] = []
        self.request_ids: list[str] = []

    async def write(self) -> None:
        """Everything before the snapshots."""
        await self._topics_and_groups()
        await self._messages()
        await self._transactions("first")
        await self._schedules()
        await self._leases("first")
        await self._requests("first")

    async def write_more(self) -> None:
        """What a start has to replay, where the snapshots were made before."""
        await self._leases("second")
        await self._requests("second")
        late = {"payload": "cancelled late", "delay_ms": HOUR_MS}
        delayed = await self.service.post("/v1/topics/work/messages", late, status=201)
        ok(await self.service.api.delete(f"/v1/schedules/{delayed['schedule_id']}"))
        ok(
            await self.service.api.put(
                "/v1/groups/pullers/offsets", json={"offsets": [_offset(0, 12)]}
            )
        )
        await self._once(
            "/v1/topics/orders/messages",
            {"payload": "after the snapshot", "key": "late"},
            "late-key",
            201,
        )
        # the last ones: of a check that is open, memory knows more than the log
        await self._transactions("second")

    async def _once(self, path: str, body: Any, key: str, status: int) -> Any:
        self.keyed.append({"path": path, "body": body, "key": key})
        return await self.service.post(path, body, key=key, status=status)

    async def _topics_and_groups(self) -> None:
        post, api = self.service.post, self.service.api
        for topic, queues in (("orders", 2), ("work", 1), ("asked", 1), ("ticks", 1)):
            await post("/v1/topics", {"topic": topic, "queues": queues}, status=201)
        groups: dict[str, dict[str, Any]] = {
            "workers": {"topics": [{"topic": "work"}], "max_attempts": 2, "backoff_ms": [HOUR_MS]},
            "in-order": {"topics": [{"topic": "orders"}], "ordered": True},
            "red-ones": {
                "topics": [{"topic": "orders", "filter": {"kind": "tag", "expression": "red"}}]
            },
            "repliers": {"topics": [{"topic": "asked"}]},
            "pullers": {},
        }
        for group, rules in groups.items():
            ok(await api.put(f"/v1/groups/{group}", json=rules), 201)
        for group in ("shop-first", "shop-second"):
            ok(await api.put(f"/v1/producer-groups/{group}", json={}), 201)

    async def _messages(self) -> None:
        service = self.service
        send = "/v1/topics/orders/messages"
        full = {
            "json": {"sku": "A1"}, "key": "8812", "tag": "red", "ordering_key": "Kunde ß",
            "queue_id": 1,
            "properties": {"color": "red", "name": "значение 🌍"},
        }  # fmt: skip
        await service.post(send, full, status=201)
        await service.post(
            send, {"payload": "AAEC", "payload_encoding": "base64", "queue_id": 0}, status=201
        )
        await self._once(send, {"payload": "sent once", "key": "once"}, "key-1", 201)
        batch = {
            "entries": [
                {"id": f"{n}", "message": {"payload": f"many {n}", "tag": "red", "queue_id": n % 2}}
                for n in range(40)
            ]
        }
        await self._once(f"{send}/batch", batch, "key-2", 201)
        ok(
            await service.api.put(
                "/v1/groups/pullers/offsets", json={"offsets": [_offset(0, 7), _offset(1, 3)]}
            )
        )
        ok(await service.api.put("/v1/groups/pullers/offsets", json={"offsets": [_offset(0, 11)]}))

    async def _transactions(self, when: str) -> None:
        """One in each state."""
        held = await self._begin(f"{when}-held", check=SOON)
        self.service.clock.advance(20)
        await self._answer_unknown(when)
        resumed = await self._begin(f"{when}-resumed", check=SOON)
        self.service.clock.advance(20)
        await self._answer_unknown(when)
        await self.service.post(f"/v1/transactions/{resumed}/resume", {})
        for verb in ("commit", "rollback"):
            decided = await self._begin(f"{when}-{verb}", check=NEVER)
            await self.service.post(f"/v1/transactions/{decided}/{verb}", {})
        delayed = await self._begin(f"{when}-delayed", check=NEVER, delay_ms=50 * HOUR_MS)
        await self.service.post(f"/v1/transactions/{delayed}/commit", {})
        await self._begin(f"{when}-open", check=NEVER)
        assert (await self.service.get(f"/v1/transactions/{held}"))["state"] == "held"

    async def _begin(self, name: str, check: dict[str, Any], **fields: Any) -> str:
        messages = [
            {"topic": topic, "message": {"payload": name, "key": name, **fields}}
            for topic in ("orders", "work")
        ]
        body = {
            "producer_group": f"shop-{name.partition('-')[0]}",
            "transaction_id": name,
            "business_key": f"order of {name}",
            "check": check,
            "messages": messages,
        }
        return str(
            (await self._once("/v1/transactions", body, f"begin-{name}", 201))["transaction_id"]
        )

    async def _answer_unknown(self, when: str) -> None:
        path = f"/v1/producer-groups/shop-{when}/checks"
        (check,) = (await self.service.post(f"{path}/receive", {"max_checks": 10}))["checks"]
        answer = {
            "check_id": check["check_id"],
            "decision": "unknown",
            "evidence": {"row": "none", "Grund": "ä"},
        }
        await self.service.post(f"{path}/answer", {"answers": [answer]})

    async def _schedules(self) -> None:
        service, send = self.service, "/v1/topics/work/messages"
        waits, cancelled, moved, comes = [
            (
                await service.post(
                    send, {"payload": name, "key": name, "delay_ms": delay_ms}, status=201
                )
            )["schedule_id"]
            for name, delay_ms in (
                ("waits", 90 * HOUR_MS),
                ("cancelled", HOUR_MS),
                ("moved", HOUR_MS),
                ("comes", 1_000),
            )
        ]
        await service.post(send, {"payload": "by level", "delay_level": 18}, status=201)
        ok(await service.api.delete(f"/v1/schedules/{cancelled}"))
        ok(
            await service.api.patch(
                f"/v1/schedules/{moved}", json={"deliver_at": "2025-10-12T08:00:00Z"}
            )
        )
        tick = {"topic": "ticks", "message": {"payload": "tick"}}
        fires = await self._once("/v1/schedules", {"cron": "* * * * *", **tick}, "cron-1", 201)
        for cron in ("0 6 * * 1-5", "0 7 * * 1-5"):
            daily = await service.post(
                "/v1/schedules", {"cron": cron, "time_zone": "Europe/Berlin", **tick}, status=201
            )
            if cron.startswith("0 7"):
                ok(await service.api.delete(f"/v1/schedules/{daily['schedule_id']}"))
        service.clock.advance(120_000)
        await service.lifecycle.get_services().schedules.run_once(service.clock.wall_ms())
        await service.lifecycle.get_services().cron.run_once(service.clock.wall_ms())
        ok(await service.api.patch(f"/v1/schedules/{fires['schedule_id']}", json={"paused": True}))
        assert (await service.get(f"/v1/schedules/{comes}"))["state"] == "delivered"
        assert (await service.get(f"/v1/schedules/{waits}"))["state"] == "scheduled"

    async def _leases(self, when: str) -> None:
        """In one group messages that are acknowledged, refused, extended, dead, leased and
        untouched.
        """
        service, path = self.service, "/v1/groups/workers"
        for n in range(9):
            await service.post(
                "/v1/topics/work/messages",
                {"payload": f"{when}-{n}", "key": f"work-{n}"},
                status=201,
            )
        received = await service.post(
            f"{path}/receive", {"max_messages": 6, "lease_ms": 12 * HOUR_MS, "worker": "Wörk"}
        )
        handles = [
            {"receipt_handle": message["receipt_handle"]} for message in received["messages"]
        ]
        acked, refused, dead, extended, *_ = handles
        await service.post(f"{path}/ack", {"entries": [acked]})
        await service.post(
            f"{path}/nack", {"entries": [{**refused, "delay_ms": 8 * HOUR_MS, "reason": "größer"}]}
        )
        await service.post(
            f"{path}/dead-letter", {"entries": [{**dead, "reason": "cannot be read"}]}
        )
        await service.post(f"{path}/extend", {"entries": [{**extended, "lease_ms": 11 * HOUR_MS}]})
        for group in ("in-order", "red-ones"):
            attempt = {"max_messages": 2, "lease_ms": 12 * HOUR_MS, "attempt_id": f"{when}-{group}"}
            await service.post(f"/v1/groups/{group}/receive", attempt)

    async def _requests(self, when: str) -> None:
        """One that is replied to, one that is cancelled, one that is too late, one that waits."""
        service = self.service
        ask, ids = "/v1/topics/asked/requests", []
        for name in ("replied", "cancelled", "waits"):
            body = {"message": {"payload": f"{when}-{name}"}, "timeout_ms": 10 * HOUR_MS}
            ids.append((await self._once(ask, body, f"{when}-{name}", 202))["request_id"])
        replied, cancelled, _ = ids
        await service.post(f"/v1/requests/{replied}/reply", {"json": {"price": "4.20"}})
        ok(await service.api.delete(f"/v1/requests/{cancelled}"))
        self.request_ids += ids


def _offset(queue_id: int, offset: int) -> dict[str, Any]:
    return {"topic": "orders", "queue_id": queue_id, "offset": offset}


def packed(data_dir: Path) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(data_dir, "data", filter=_without_the_machine)
    return lzma.compress(archive.getvalue(), preset=9)


def _without_the_machine(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = WALL_MS // 1_000, 0, 0, "", ""
    return entry


async def write(data_dir: Path, killed: Path) -> dict[str, Any]:
    """The truth about what is then in both folders."""
    clock = ManualClock(WALL_MS)
    async with whole_service(data_dir, clock) as service:
        writer = Writer(service)
        await writer.write()
    async with whole_service(data_dir, clock) as service:
        writer.service = service
        await writer.write_more()
        repeated = [[request, await service.repeat(request)] for request in writer.keyed]
        served = await service.served(writer.request_ids)
        await service.post("/v1/admin/store/flush", {})
        shutil.copytree(data_dir, killed)  # as kill -9 would leave it
        wall_ms = clock.wall_ms()
    return {
        "wall_ms": wall_ms,
        "served": served,
        "repeated": repeated,
        "request_ids": writer.request_ids,
    }


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        data_dir, killed = Path(scratch) / "data", Path(scratch) / "killed"
        truth = asyncio.run(write(data_dir, killed))
        (folder / "closed.tar.xz").write_bytes(packed(data_dir))
        (folder / "killed.tar.xz").write_bytes(packed(killed))
    text = json.dumps(truth, ensure_ascii=False, indent=1)
    (folder / "truth.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
