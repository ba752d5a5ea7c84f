"""A log to replicate, as a primary wrote it, and the pieces in which a replica may get it."""

from collections.abc import Iterator
from pathlib import Path, PurePath
from random import Random
from typing import NamedTuple

from app.replicas.options import ReplicaOptions
from app.replicas.sender import Sender
from storage.files.simulated import SimulatedDisk
from storage.formats import scan
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.local.replica_store import LocalReplica
from storage.message import Message, QueueId, StoredMessage, TransactionBits
from storage.store import KeyQuery
from tests.support.builders import message
from tests.support.lives import run_lives
from tests.support.simulation import ROOT, World

SEGMENT_BYTES = 16_384
OPTIONS = LocalStoreOptions(
    segment_bytes=SEGMENT_BYTES,
    queue_file_entries=10,
    prepare_ahead_bytes=8_192,
    index_slots=16,
    index_file_entries=40,
    queue_flush_interval_ms=20,
    snapshot_interval_ms=50,
)
TOPICS = {"orders": 2, "emails": 1, "drafts": 1}
GROUPS = ("billing", "mail")
EVERYTHING = {"max_messages": 10_000, "max_bytes": 1 << 30}


class Piece(NamedTuple):
    """Bytes of the log that can be taken together: a unit, or the record that closes a segment."""

    offset: int
    data: bytes
    end: int  # where the next piece begins: in the next segment behind such a record


class Recorded(NamedTuple):
    """What a primary left: its disk, and its log in pieces."""

    disk: SimulatedDisk
    pieces: list[Piece]

    @property
    def end(self) -> int:
        return self.pieces[-1].end


def record(seed: int, *, lives: int = 3, calls: int = 40) -> Recorded:
    """A few lives of a primary that sends, commits offsets, forgets and deletes; each but the last
    is killed, so that the log has several epochs.
    """
    randomness = Random(seed)

    async def life(store: LocalMessageStore) -> None:
        for number in range(calls):
            await _call(store, randomness, number)

    async def last(store: LocalMessageStore) -> None:
        await life(store)
        await store.aclose()

    disk, _ = run_lives((*[life] * (lives - 1), last), open_with_topics, seed=seed)
    return recorded_of(disk)


def recorded_of(disk: SimulatedDisk) -> Recorded:
    return Recorded(disk, list(_pieces(disk)))


async def open_with_topics(world: World) -> LocalMessageStore:
    store = await world.open_store(OPTIONS)
    await _create_topics(store)
    return store


async def _create_topics(store: LocalMessageStore) -> None:
    for topic, count in TOPICS.items():
        await store.create_topic(topic, queue_count=count)


async def _call(store: LocalMessageStore, randomness: Random, number: int) -> None:
    kind = randomness.random()
    if kind < 0.75:
        await store.append(
            [_message(randomness, n) for n in range(randomness.choice((1, 1, 3, 9)))]
        )
    elif kind < 0.9:
        queue = _queue(randomness)
        end = store.bounds(queue).end
        await store.commit_offset(randomness.choice(GROUPS), queue, randomness.randint(0, end))
    elif kind < 0.93:
        await store.forget_offsets(randomness.choice(GROUPS))
    elif number % 2:
        await store.delete_topic("drafts")
        await store.create_topic("drafts", queue_count=1)


def _queue(randomness: Random) -> QueueId:
    topic = randomness.choice([*TOPICS])
    return QueueId(topic, randomness.randrange(TOPICS[topic]))


def _message(randomness: Random, number: int) -> Message:
    is_final = randomness.random() < 0.1
    return message(
        randomness.randbytes(randomness.choice((0, 10, 200, 2_000))),
        queue=_queue(randomness),
        message_id=f"msg_{randomness.getrandbits(32):08x}",
        key=f"key_{number % 4}",
        tag=randomness.choice((None, "paid", "open")),
        transaction=TransactionBits.COMMIT if is_final else TransactionBits.NONE,
    )


def _pieces(disk: SimulatedDisk) -> Iterator[Piece]:
    folder = ROOT / "commitlog"
    for name in disk.list_directory(folder):
        data, base = read_file(disk, folder / name), int(name)
        at = base
        while at < base + SEGMENT_BYTES:
            step = scan.judge(data, at - base, base, segment_end=base + SEGMENT_BYTES)
            if isinstance(step, scan.Unit):
                yield Piece(at, data[at - base : step.end], base + step.end)
                at = base + step.end
                continue
            if step.stop is scan.Stop.EMPTY:
                return
            assert step.stop is scan.Stop.END_OF_FILE, step
            yield Piece(at, data[at - base : at - base + 8], base + SEGMENT_BYTES)
            break


def read_file(disk: SimulatedDisk, path: PurePath) -> bytes:
    file = disk.open(path)
    return file.read(0, file.size())


def joined(pieces: list[Piece]) -> tuple[int, bytes, int]:
    """(offset, bytes, end) of pieces of one segment, one behind another."""
    return pieces[0].offset, b"".join(piece.data for piece in pieces), pieces[-1].end


def block(pieces: list[Piece], at: int, most: int) -> list[Piece]:
    """Up to so many pieces from `at` on, of one segment."""
    segment = pieces[at].offset // SEGMENT_BYTES
    return [piece for piece in pieces[at : at + most] if piece.offset // SEGMENT_BYTES == segment]


async def open_replica(world: World) -> LocalReplica:
    return await LocalReplica.open(
        ROOT,
        OPTIONS,
        world.vfs,
        world.clock,
        world.identifiers,
        runner=world.runner,
        on_failure=world.failures.append,
    )


def sender_of(world: World, store: LocalMessageStore) -> Sender:
    """The primary's side of a connection that is not made."""
    return Sender(
        store,
        SEGMENT_BYTES,
        Path("data"),
        world.clock,
        ReplicaOptions(),
        address="",
        registry_changes=lambda: 0,
        let_in=lambda _: None,
    )


def log_bytes(disk: SimulatedDisk, end: int) -> bytes:
    """The log up to `end`, segment by segment."""
    folder = ROOT / "commitlog"
    return b"".join(read_file(disk, folder / name) for name in disk.list_directory(folder))[:end]


class Seen(NamedTuple):
    """All that readers of a store can see."""

    messages: dict[QueueId, list[StoredMessage]]
    offsets: dict[tuple[str, QueueId], int | None]
    by_key: dict[str, list[str]]
    deleted_queues: int


async def see(store: LocalMessageStore) -> Seen:
    await _create_topics(store)  # as the registry has them: the log does not say so
    queues = [
        QueueId(topic, number)
        for topic, count in store._queues.counts.items()
        for number in range(count)
        if store.bounds(QueueId(topic, number)).end
    ]
    return Seen(
        {
            queue: await store.read(queue, store.bounds(queue).first, **EVERYTHING)
            for queue in queues
        },
        {
            (group, queue): await store.committed_offset(group, queue)
            for group in GROUPS
            for queue in queues
        },
        {
            key: sorted(
                found.message_id
                for found in await store.find_messages(
                    KeyQuery(key, topics=[*TOPICS], max_messages=10_000)
                )
            )
            for key in (f"key_{n}" for n in range(4))
        },
        store.deleted_queues(),
    )
