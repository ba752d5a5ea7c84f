"""Writes the stores of tests/golden/escrowmq-1: `python -m tests.golden.write_own_store FOLDER`.

Run once for each version of the format and never again for an old one. Time, chance and the disk
are simulated, so the same engine writes the same bytes; what is noted beside them is what the
engine was given and what it answered, never what a reader found in the bytes.
"""

import asyncio
import io
import json
import lzma
import sys
import tarfile
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path, PurePath
from random import Random
from typing import Any

from app.idempotency.keys import IdempotencyKeys, KeyedRequest
from storage.files.simulated import SimulatedDisk
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import ORDERING_KEY, Appended, Durability, Message, QueueId
from tests.support.simulation import ROOT, World
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.options import TransactionOptions
from txn.states import TxnEvent
from txn.transaction import Transaction

SETTINGS = LocalStoreOptions(
    segment_bytes=1 << 15,
    queue_file_entries=20,
    prepare_ahead_bytes=1 << 14,
    index_slots=64,
    index_file_entries=200,
)
WALL_MS = 1_750_000_000_000
ORDERS, EMAILS, LETTERS = (
    QueueId("orders", 0),
    QueueId("emails", 1),
    QueueId("Letters_to.no-one", 0),
)
# its records are of version 2
RETRY = QueueId("%RETRY%" + "a-group-whose-name-is-longer-than-127-characters-" * 3, 0)
SOON = CheckbackPolicy(
    first_after_ms=100, interval_ms=200, max_answers=1, unreachable_limit_ms=3_600_000
)
NEVER = CheckbackPolicy(first_after_ms=1 << 50)
TORN_SEED = 1  # of a power cut that leaves a part of the last unit


class Truth:
    """What the engine was given and answered, in the order of the log."""

    def __init__(self) -> None:
        self.appends: list[dict[str, Any]] = []  # one for each call: its epoch, and its messages
        self.commits: list[dict[str, Any]] = []  # offsets that groups committed
        self.sent_keys: list[dict[str, Any]] = []
        self.epoch = 0

    def note(self, messages: Sequence[Message], answers: Sequence[Appended]) -> None:
        rows = [
            row_of(message) | place_of(answer)
            for message, answer in zip(messages, answers, strict=True)
        ]
        self.appends.append({"epoch": self.epoch, "messages": rows})


def row_of(message: Message) -> dict[str, Any]:
    return {
        "topic": message.queue.topic,
        "queue_id": message.queue.number,
        "message_id": message.message_id,
        "body": b64encode(message.body).decode(),
        "born_at_ms": message.born_at_ms,
        "key": message.key,
        "tag": message.tag,
        "properties": dict(message.properties),
        # one without a value is not stored
        "system": {name: value for name, value in message.system.items() if value},
        "transaction": message.transaction.name,
        "prepared_log_offset": message.prepared_log_offset,
    }


def place_of(answer: Appended) -> dict[str, Any]:
    return {
        "queue_offset": answer.queue_offset,
        "log_offset": answer.log_offset,
        "stored_at_ms": answer.stored_at_ms,
    }


def facts_of(transaction: Transaction) -> dict[str, Any]:
    """What a client can be told about it."""
    places = [
        [one.message_id, str(one.queue), one.key, one.final_offset] for one in transaction.messages
    ]
    names = (
        "transaction_id", "producer_group", "business_key", "idempotency_key", "prepared_at_ms",
        "next_check_at_ms", "revision",
        "answers", "last_answer", "hold_reason", "was_held", "resolved_at_ms", "reason",
    )  # fmt: skip
    words = {
        "state": transaction.state.name,
        "resolved_by": transaction.resolved_by and transaction.resolved_by.name,
    }
    return {name: getattr(transaction, name) for name in names} | words | {"messages": places}


class Service:
    """A store with what stands above it."""

    def __init__(self, world: World, store: LocalMessageStore, truth: Truth) -> None:
        self.world = world
        self.store = store
        self.truth = truth
        self.coordinator = TransactionCoordinator(
            store, world.clock, world.identifiers, TransactionOptions()
        )
        self.idempotency = IdempotencyKeys(store, world.clock)

    @classmethod
    async def open(cls, world: World, truth: Truth) -> "Service":
        store = await world.open_store(SETTINGS)
        truth.epoch += 1
        append = store.append

        async def noted(
            messages: Sequence[Message], *, durability: Durability | None = None
        ) -> list[Appended]:
            answers = await append(messages, durability=durability)
            truth.note(messages, answers)
            return answers

        store.append = noted  # type: ignore[method-assign]
        for queue in (ORDERS, EMAILS, LETTERS, RETRY):
            await store.create_topic(queue.topic, queue_count=queue.number + 1)
        service = cls(world, store, truth)
        await service.coordinator.start()
        await service.idempotency.start()
        return service

    def message(self, queue: QueueId, body: bytes, **fields: Any) -> Message:
        message_id = self.world.identifiers.new("msg")
        return Message(
            queue=queue,
            message_id=message_id,
            body=body,
            born_at_ms=self.world.clock.wall_ms() - 7,
            **fields,
        )

    async def send(self, *messages: Message) -> None:
        """One append; the next one comes some milliseconds later."""
        await self.store.append(messages)
        await asyncio.sleep(0.013)

    async def send_once(self, key: str, *messages: Message) -> None:
        request = KeyedRequest("sendMessage orders", key, f"print of {key}")
        given = dict(enumerate(messages))
        await self.idempotency.append(request, messages[0].queue.topic, given, self.store.append)
        ids = [message.message_id for message in messages]
        self.truth.sent_keys.append({**request._asdict(), "message_ids": ids})

    async def commit_offset(self, group: str, queue: QueueId, queue_offset: int) -> None:
        await self.store.commit_offset(group, queue, queue_offset)
        row = {"group": group, "topic": queue.topic, "queue": queue.number, "offset": queue_offset}
        self.truth.commits.append({"epoch": self.truth.epoch, "body": row})

    async def begin(
        self, name: str, *bodies: bytes, policy: CheckbackPolicy = NEVER, **fields: Any
    ) -> str:
        messages = [
            self.message((ORDERS, EMAILS)[n % 2], body, key=name) for n, body in enumerate(bodies)
        ]
        begun = await self.coordinator.begin(
            Begin(messages, "shop", policy, transaction_id=name, **fields)
        )
        return begun.transaction.transaction_id

    async def answer_unknown(self) -> None:
        """Exhausts the transaction that is due."""
        await asyncio.sleep(0.3)
        (check,) = await self.coordinator.receive_checks(
            "shop", max_checks=1, lease_ms=1_000, wait_ms=0
        )
        await self.coordinator.answer_check(
            "shop", check.check_id, TxnEvent.UNKNOWN, evidence={"row": "none", "Grund": "ä"}
        )

    async def described(self) -> dict[str, Any]:
        """What a start must give back, from the engine that lived through it."""
        queues = [
            queue
            for topic in sorted(await self.store.topics())
            for queue in await self.store.queues(topic)
        ]
        groups = {
            (row["body"]["group"], QueueId(row["body"]["topic"], row["body"]["queue"]))
            for row in self.truth.commits
        }
        return {
            "queue_bounds": {str(queue): list(await self.store.offsets(queue)) for queue in queues},
            "committed_offsets": [
                [group, str(queue), await self.store.committed_offset(group, queue)]
                for group, queue in sorted(groups)
            ],
            "transactions": [
                facts_of(await self.coordinator.get(transaction.transaction_id))
                for transaction in self.coordinator.table
            ],
        }


# --------------------------------------------------------------------------------------------------
# what is written


async def every_kind(service: Service) -> None:
    """Messages of every shape, in units of one and of many."""
    send, message = service.send, service.message
    await send(message(ORDERS, b""))
    await send(
        message(
            ORDERS,
            b"plain",
            key="8812",
            tag="created",
            properties={"color": "red", "empty": "", "also empty": ""},
        )
    )
    await send(
        message(
            LETTERS,
            "grüße, 你好 🌍".encode(),
            key="schlüssel",
            tag="größe",
            properties={"имя": "значение 🌍"},
        )
    )
    await send(
        message(
            EMAILS,
            bytes(range(256)),
            system={ORDERING_KEY: "Kunde ß", "__content_type": "image/png"},
        )
    )
    await send(message(RETRY, b"again", key="k", tag="t", properties={"RECONSUMED": "3"}))
    for length in range(8):  # every length of padding, for each version
        await send(message(ORDERS, b"p" * length, key="padded"))
        await send(message(RETRY, b"p" * length, key="padded"))
    await send(
        *[
            message(ORDERS, f"one of many: {n}".encode() * (n % 5), tag=f"t{n % 3}")
            for n in range(60)
        ]
    )
    await send(
        *[
            message(queue, b"mixed", tag="mixed")
            for queue in (EMAILS, RETRY, LETTERS, EMAILS, ORDERS)
        ]
    )
    await send(
        message(
            ORDERS,
            b"\xda\xa3\x20\xa7" * 8 + b"__unit\x01" + b"0" * 40 + b"\x02__seal\x01",
            tag="looks like a record",
        )
    )
    await send(message(LETTERS, b"a long one " * 1_000))  # ends a segment early
    await send(message(LETTERS, b"p" * 3, properties={f"name{n}": "v" * 50 for n in range(100)}))
    await service.send_once("key-1", message(ORDERS, b"sent once"))
    await service.send_once(
        "key-2", message(ORDERS, b"first of two"), message(ORDERS, b"second of two")
    )


async def transactions(service: Service) -> None:
    """One of each fate."""
    coordinator = service.coordinator
    committed = await service.begin(
        "committed", b"order", b"email", business_key="order-1", idempotency_key="begin-1"
    )
    await coordinator.commit(committed)
    rolled_back = await service.begin("rolled-back", b"never seen", business_key="order-2")
    await coordinator.rollback(rolled_back, reason="payment refused, größer")
    held = await service.begin("held", b"undecided", policy=SOON)
    await service.answer_unknown()
    resumed = await service.begin("resumed", b"asked again", policy=SOON)
    await service.answer_unknown()
    await coordinator.resume(resumed)
    await service.begin("open", b"half one", b"half two", b"half three", business_key="order-3")
    assert [coordinator.table.get(name).state.name for name in (held, resumed)] == [
        "HELD",
        "PREPARED",
    ]


async def offsets(service: Service) -> None:
    await service.commit_offset("warehouse", ORDERS, 3)
    await service.commit_offset("warehouse", EMAILS, 1)
    await service.commit_offset("warehouse", ORDERS, 12)
    await service.commit_offset("Lager_2", LETTERS, 0)


async def keep_snapshots(service: Service) -> None:
    await service.coordinator.save_snapshot()
    await service.idempotency.save_snapshot()
    # until what they reflect, and they, are on disk
    await asyncio.sleep(2 * SETTINGS.snapshot_interval_ms / 1_000)


def closed() -> tuple[SimulatedDisk, dict[str, Any]]:
    """One life, closed in order; what came after the snapshots must be replayed."""
    truth = Truth()

    async def life(service: Service) -> dict[str, Any]:
        await every_kind(service)
        await transactions(service)
        await offsets(service)
        await keep_snapshots(service)
        await service.coordinator.commit("open")
        await service.begin("open since the snapshot", b"half")
        await service.send_once("key-3", service.message(ORDERS, b"after the snapshot"))
        await service.commit_offset("warehouse", LETTERS, 1)
        return await service.described()

    disk, described = live(SimulatedDisk(), truth, 1, life, in_order=True)
    return disk, {**vars(truth), **described, "closed_in_order": True, "torn_at": None}


def cut() -> tuple[SimulatedDisk, dict[str, Any]]:
    """A life that is killed, and one that the power leaves in the middle of a unit."""
    truth = Truth()

    async def first(service: Service) -> dict[str, Any]:
        await every_kind(service)
        await transactions(service)
        await keep_snapshots(service)
        await offsets(service)
        return {}

    torn_at = 0

    async def second(service: Service) -> dict[str, Any]:
        nonlocal torn_at
        await service.coordinator.commit("open")
        await service.send(service.message(ORDERS, b"acknowledged last"))
        described = await service.described()
        torn_at = service.store.status().written_end
        lost = [service.message(ORDERS, bytes([65 + n]) * 700) for n in range(8)]
        # the unit is in the page cache, its sync never comes
        service.world.disk.cut_after = service.world.disk.operations + 1
        service.world.loop.create_task(service.store.append(lost))
        return described

    disk, _ = live(SimulatedDisk(), truth, 2, first, in_order=False)
    disk, described = live(disk.after_kill(), truth, 3, second, in_order=False)
    survivor = disk.after_power_cut(Random(TORN_SEED))
    return survivor, {**vars(truth), **described, "closed_in_order": False, "torn_at": torn_at}


def live(
    disk: SimulatedDisk,
    truth: Truth,
    seed: int,
    life: Callable[[Service], Awaitable[dict[str, Any]]],
    *,
    in_order: bool,
) -> tuple[SimulatedDisk, dict[str, Any]]:
    described: dict[str, Any] = {}

    async def main(world: World) -> None:
        service = await Service.open(world, truth)
        described.update(await life(service))
        if in_order:
            await service.store.aclose()
        else:
            await asyncio.sleep(0.05 if world.disk.cut_after is None else 60)

    with World(disk, seed, wall_ms=WALL_MS + 3_600_000 * truth.epoch) as world:
        world.run(main(world))
        return world.disk, described


# --------------------------------------------------------------------------------------------------
# packing


def files(disk: SimulatedDisk, folder: PurePath) -> Iterator[tuple[str, bytes | None]]:
    """Every folder (None) and file below, by its path from the store's parent."""
    yield str(folder.relative_to(ROOT.parent)), None
    for name in disk.list_directory(folder):
        path = folder / name
        try:
            file = disk.open(path)
        except FileNotFoundError:
            yield from files(disk, path)
        else:
            yield str(path.relative_to(ROOT.parent)), file.read(0, file.size())


def packed(disk: SimulatedDisk) -> bytes:
    """A tar without anything of the machine that made it."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in files(disk, ROOT):
            entry = tarfile.TarInfo(name)
            entry.mtime = WALL_MS // 1_000
            if data is None:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            else:
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return lzma.compress(archive.getvalue(), preset=9)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in (("closed", closed), ("cut", cut)):
        disk, truth = write()
        (folder / f"{name}.tar.xz").write_bytes(packed(disk))
        text = json.dumps(truth, ensure_ascii=False, indent=1)
        (folder / f"{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
