"""Makes the directory of a replica one that a service starts in."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from app.disk.spare_space import SpareSpace
from app.replicas import folder
from app.replicas.promise import LogPlace, Promise
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.formats.epochs import EPOCHS_OF_A_PROMOTION
from storage.identifiers import Identifiers, SystemRandom
from storage.local.options import LocalStoreOptions
from storage.local.replica_store import LocalReplica


class NoReplica(Exception):
    """The directory follows nothing."""


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replica is, as it noted it. Log offsets; bytes; times in Unix milliseconds, 0: the
    primary was never heard of.
    """

    report: str = "replica"
    data_dir: str
    primary: str
    primary_end: int
    end: int
    behind_bytes: int
    heard_at_ms: int


def state_of(data_dir: Path) -> ReplicaState:
    """Raises NoReplica, NoteDamaged, OSError."""
    note = folder.read_note(data_dir)
    if note is None:
        raise NoReplica(f"{data_dir} is no replica's: it has no replica.json")
    return ReplicaState(
        data_dir=str(data_dir),
        primary=note.primary,
        primary_end=note.primary_end,
        end=note.end,
        behind_bytes=max(0, note.primary_end - note.end),
        heard_at_ms=note.heard_at_ms,
    )


Claim = Callable[[LogPlace, Promise], Awaitable[Promise]]


async def claim_alone(place: LogPlace, promised: Promise) -> Promise:
    """Begin in a later epoch than any known service comes to by starting again; ask no other
    node.
    """
    return Promise(max(place.last_epoch, promised.epoch) + EPOCHS_OF_A_PROMOTION)


async def promote(
    data_dir: Path,
    options: LocalStoreOptions,
    claim: Claim = claim_alone,
    *,
    may_be_empty: bool = False,
) -> LogPlace:
    """The epoch that the service begins in, and where its log ends. Durable on return.

    `claim` is given how far the log is, and what the node has promised. It returns the epoch to
    begin in, with the name of the node where others have promised to follow it; or it raises, and
    then nothing is changed here.

    `may_be_empty`: where there is no log yet, one begins.

    Raises NoReplica, NoteDamaged, DirectoryInUse, StorageError, OSError. It can be repeated: the
    directory is a replica's until all the rest is durable.
    """
    spare = SpareSpace(data_dir)
    await asyncio.to_thread(spare.release_for_replica)
    if not folder.has_log(data_dir):
        if not may_be_empty:
            raise NoReplica(f"{data_dir} has no log yet: the primary never let it in")
        await asyncio.to_thread(folder.begin_log, data_dir, 0, options.segment_bytes)
    clock = SystemClock()
    replica = await LocalReplica.open(
        data_dir / "store", options, OsVfs(), clock, Identifiers(clock, SystemRandom())
    )
    try:
        units_end, _ = await replica.read_end()
        place = LogPlace(replica.epochs.last_epoch, units_end)
        own = await claim(place, folder.read_promise(data_dir))
        if own.node:
            await asyncio.to_thread(folder.write_promise, data_dir, own)
        await asyncio.to_thread(folder.note_promotion, data_dir, place.last_epoch, own.epoch)
    except BaseException:
        await replica.aclose()
        raise
    end = replica.stored_offset()
    await replica.promote(own.epoch)
    await asyncio.to_thread(folder.remove_note, data_dir)
    await asyncio.to_thread(spare.keep)
    return LogPlace(own.epoch, end)
