"""kill -9 at every call on the disk between a half and its op: a real process, a real file system,
and a chosen moment.

The log writes what the failpoints are: each kind of call that reaches the disk after the begin was
answered, on each kind of file, and there both sides of it, before and behind. After each kill the
transaction is decided once more, and its messages must be there exactly once.

`python -m tests.fault.kill_between --kills N --directory D` does each failpoint N times and prints
what it found.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import structlog

from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import Message, QueueId
from tests.support.check_pass import everything, transactions_by_check_pass
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import Begin, TransactionCoordinator
from txn.options import TransactionOptions
from txn.states import TxnState

QUEUES = [QueueId("orders", 0), QueueId("emails", 0)]
OPTIONS = LocalStoreOptions(
    segment_bytes=1 << 18,
    prepare_ahead_bytes=1 << 16,
    queue_file_entries=100,
    index_slots=100,
    index_file_entries=500,
    queue_flush_interval_ms=1,
    snapshot_interval_ms=1,
)
_CALLS = frozenset("store write sync extend allocate rename sync_directory remove".split())
_REST_SECONDS = 0.3  # for what is derived, which is written beside

Point = tuple[str, str, str]  # which side of which call on which kind of file


class Watched:
    """A file, a region or a file system whose calls are told of, before and behind."""

    def __init__(
        self, inner: Any, tell: Callable[[Point], None], path: PurePath | None = None
    ) -> None:
        self._inner = inner
        self._tell = tell
        self._path = path

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name in ("open", "map"):
            return lambda *given, **how: Watched(
                call(*given, **how), self._tell, self._path or given[0]
            )
        if name not in _CALLS:
            return call

        def told(*given: Any) -> Any:
            kind = _kind(self._path or given[-1])
            self._tell(("before", name, kind))
            result = call(*given)
            self._tell(("behind", name, kind))
            return result

        return told


def _kind(path: PurePath) -> str:
    parts = path.parts
    if "consumequeue" in parts:
        at = parts.index("consumequeue") + 1
        return f"queue of {parts[at]}" if len(parts) > at else "queues"
    return next(
        (part for part in ("commitlog", "index", "snapshots", "checkpoint") if part in parts),
        path.name,
    )


def run(directory: Path, kills: int) -> tuple[Counter[Point], list[str]]:
    """(kills at each failpoint, broken promises)."""
    points = _failpoints(directory / "first")
    # what is written beside a commit may not be, or later than it is waited for
    most_misses = 10 + 2 * kills
    done: Counter[Point] = Counter()
    number = 0
    for at, point in enumerate(points):
        root, misses = directory / f"store-{at}", 0
        while done[point] < kills and misses < most_misses:
            number += 1
            reader, writer = os.pipe()
            child = _fork(lambda: _commit_and_die(root, number, point, writer))  # noqa: B023
            os.close(writer)
            answered = os.read(reader, 1) == b"c"
            _, status = os.waitpid(child, 0)
            os.close(reader)
            if os.WIFSIGNALED(status):
                done[point] += 1
            elif os.waitstatus_to_exitcode(status) == 0:
                misses += 1  # nothing was written there: some is, in a new store only
            else:
                return done, [f"{point}: the process ended by itself"]
            child = _fork(lambda: _verify(root, number, answered=answered))  # noqa: B023
            if os.waitpid(child, 0)[1]:
                return done, [f"{point}, transaction {number}: see above"]
            if not os.WIFSIGNALED(status):
                root = directory / f"store-{at}-{number}"
    return done, []


def _failpoints(root: Path) -> list[Point]:
    """What a commit and what follows it do to the disk, seen once without a kill; told through a
    pipe.
    """
    reader, writer = os.pipe()

    def look() -> None:
        seen: dict[Point, None] = {}
        asyncio.run(_commit(root, 0, seen.__setitem__, lambda: None))
        os.write(writer, "\n".join(["|".join(point) for point in seen]).encode())

    child = _fork(look)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        lines = told.read().decode().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    return [(side, call, kind) for side, call, kind in (line.split("|") for line in lines)]


def _commit_and_die(root: Path, number: int, point: Point, writer: int) -> None:
    def die(at: Point, _: None) -> None:
        if at == point:
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(_commit(root, number, die, lambda: os.write(writer, b"c")))


async def _commit(
    root: Path, number: int, tell: Callable[[Point, None], None], answered: Callable[[], object]
) -> None:
    is_armed = False

    def told(point: Point) -> None:
        if is_armed:
            tell(point, None)

    _, coordinator = await _open(root, Watched(OsVfs(), told))
    messages = [
        Message(queue=queue, message_id=f"{number}-{queue.topic}", body=b"x" * 100, born_at_ms=0)
        for queue in QUEUES
    ]
    await coordinator.begin(Begin(messages, "shop", CheckbackPolicy(), f"txn-{number}"))
    is_armed = True
    await coordinator.commit(f"txn-{number}")
    answered()
    await coordinator.save_snapshot()
    await asyncio.sleep(_REST_SECONDS)


def _verify(root: Path, number: int, *, answered: bool) -> None:
    asyncio.run(_is_all_true(root, number, answered=answered))


async def _is_all_true(root: Path, number: int, *, answered: bool) -> None:
    store, coordinator = await _open(root, OsVfs())
    transaction_id = f"txn-{number}"
    state = (await coordinator.get(transaction_id)).state
    assert state in (
        (TxnState.COMMITTED,) if answered else (TxnState.COMMITTED, TxnState.PREPARED)
    ), state
    undecided = {
        transaction.transaction_id
        for transaction in coordinator.table
        if not transaction.state.is_decided
    }
    by_pass = await transactions_by_check_pass(store)
    assert {key for key, op in by_pass.items() if op is None} == undecided
    # a producer that has heard nothing says it once more
    outcome = await coordinator.commit(transaction_id)
    assert outcome.replayed == (state is TxnState.COMMITTED)
    for queue in QUEUES:
        found = Counter([message.message_id async for message in everything(store, queue)])
        assert found == {f"{key.removeprefix('txn-')}-{queue.topic}": 1 for key in by_pass}, found
    await store.aclose()


async def _open(root: Path, vfs: Any) -> tuple[LocalMessageStore, TransactionCoordinator]:
    clock = SystemClock()
    identifiers = Identifiers(clock, SystemRandom())
    store = await LocalMessageStore.open(root, OPTIONS, vfs, clock, identifiers)
    for queue in QUEUES:
        await store.create_topic(queue.topic, queue_count=1)
    coordinator = TransactionCoordinator(store, clock, identifiers, TransactionOptions())
    await coordinator.start()
    return store, coordinator


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        sys.stdout.flush()
    finally:
        os._exit(status)


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--kills", type=int, required=True)
    arguments.add_argument("--directory", type=Path, required=True)
    given = arguments.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    done, problems = run(given.directory, given.kills)
    sys.stdout.writelines(f"{count} kills {' '.join(point)}\n" for point, count in done.items())
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    sys.stdout.write(
        f"{sum(done.values())} kills at {len(done)} failpoints, {len(problems)} broken promises\n"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
