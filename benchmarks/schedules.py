"""Delayed messages: what a million that wait cost, how late a hundred thousand of one second come,
and what sends feel of it.

In a process of its own for each figure of memory, so that one does not count what another has left.
"""

import asyncio
import gc
import os
import tempfile
from collections.abc import Callable, Coroutine
from multiprocessing import get_context
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, TypeVar

import uvloop

from benchmarks.report import Figure, show
from scheduler import scheduled_message
from scheduler.options import ScheduleOptions
from scheduler.schedule import ScheduleState
from scheduler.schedule_lookup import Wanted
from scheduler.schedule_service import ScheduleService
from storage.clock import SystemClock
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import LocalStoreOptions
from storage.message import Message, QueueId

T = TypeVar("T")

WAITING = int(os.environ.get("ESCROWMQ_BENCH_WAITING", "1_000_000"))
DUE = 100_000
BODY_BYTES = 100
BATCH = 500
ORDERS = [QueueId("orders", number) for number in range(4)]
SECOND_MS = 1_000
DAY_MS = 86_400_000


class House:
    """A store and its schedules."""

    def __init__(
        self,
        store: LocalMessageStore,
        service: ScheduleService,
        late_ms: list[int],
        opened_s: float,
    ) -> None:
        self.store = store
        self.service = service
        self.late_ms = late_ms
        self.opened_s = opened_s
        self.clock = SystemClock()
        self.identifiers = Identifiers(self.clock, SystemRandom())

    @classmethod
    async def open(cls, root: Path) -> "House":
        clock = SystemClock()
        begun = perf_counter()
        store = await LocalMessageStore.open(
            root / "store", LocalStoreOptions(), OsVfs(), clock, Identifiers(clock, SystemRandom())
        )
        await store.create_topic("orders", queue_count=len(ORDERS))
        late_ms: list[int] = []
        service = ScheduleService(store, clock, ScheduleOptions(), on_delivered=late_ms.extend)
        await service.start()
        await service.run_once(clock.wall_ms())
        return cls(store, service, late_ms, perf_counter() - begun)

    def messages(self, count: int) -> list[Message]:
        now_ms = self.clock.wall_ms()
        return [
            Message(
                queue=ORDERS[number % 4],
                message_id=message_id,
                body=os.urandom(BODY_BYTES),
                born_at_ms=now_ms,
                key="k",
            )
            for number, message_id in enumerate(self.identifiers.many("msg", count))
        ]

    async def put_off(self, count: int, due_ms: Callable[[int], int]) -> None:
        """So many, with other messages in between, so that they lie scattered over the log."""
        for at in range(0, count, BATCH):
            delayed = [
                scheduled_message.delay(
                    scheduled_message.with_delay(one, due_ms=due_ms(at + number)),
                    self.clock.wall_ms(),
                )
                for number, one in enumerate(self.messages(min(BATCH, count - at)))
            ]
            others = self.messages(len(delayed))
            mixed = [one for pair in zip(delayed, others, strict=True) for one in pair]
            await asyncio.gather(
                *[
                    self.store.append(mixed[begin : begin + 100])
                    for begin in range(0, len(mixed), 100)
                ]
            )
            await self.service.follow()

    async def rest(self) -> None:
        """Until what is derived is on disk."""
        await self.store.append(self.messages(1))
        while self.store.status().replay_backlog_bytes:  # noqa: ASYNC110  no event says it
            await asyncio.sleep(0.2)


def in_process(work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        sender.send(uvloop.run(work(*arguments)))
        sender.close()
        os._exit(0)  # as a kill leaves it: nothing is closed in order

    process = context.Process(target=run)
    process.start()
    sender.close()
    try:
        return receiver.recv()  # type: ignore[no-any-return]
    finally:
        process.join()


def memory_bytes() -> int:
    """Of this process, without the pages of files that it has mapped."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("RssAnon is not told")


# --------------------------------------------------------------------------------------------------
# a million that wait


async def fill(root: Path) -> float:
    """Seconds; then the process ends without closing anything."""
    house = await House.open(root)
    now_ms, chance = house.clock.wall_ms(), Random(1)
    begun = perf_counter()
    await house.put_off(WAITING, lambda _: now_ms + chance.randrange(DAY_MS, 30 * DAY_MS))
    taken = perf_counter() - begun
    await house.rest()
    return taken


async def start(root: Path) -> dict[str, float]:
    """A start, what it holds in memory, a sweep, a list and a look at one; then an orderly end."""
    before = memory_bytes()
    house = await House.open(root)
    held = memory_bytes() - before
    begun = perf_counter()
    for _ in range(100):
        await house.service.run_once(house.clock.wall_ms())
    swept = (perf_counter() - begun) / 100
    begun = perf_counter()
    page = await house.service.page(
        Wanted([ScheduleState.SCHEDULED], "orders"), after=None, max_items=100
    )
    listed = perf_counter() - begun
    begun = perf_counter()
    for one in page.items:
        assert (await house.service.get(one.schedule_id)).state is ScheduleState.SCHEDULED
    found = (perf_counter() - begun) / 100
    waiting = house.service.counts.waiting
    await house.store.aclose()
    return {
        "opened": house.opened_s, "held": held, "swept": swept, "listed": listed, "found": found,
        "waiting": waiting,
    }  # fmt: skip


async def start_empty(root: Path) -> tuple[float, int]:
    before = memory_bytes()
    house = await House.open(root)
    held = memory_bytes() - before
    await house.store.aclose()
    return house.opened_s, held


def run_waiting() -> None:
    with (
        tempfile.TemporaryDirectory(dir=".") as directory,
        tempfile.TemporaryDirectory(dir=".") as empty,
    ):
        root = Path(directory)
        in_process(start_empty, Path(empty))
        empty_s, empty_held = in_process(start_empty, Path(empty))
        filled_s = in_process(fill, root)
        after_kill = in_process(start, root)
        after_close = in_process(start, root)
        timers = sum(path.stat().st_size for path in (root / "store" / "timers").iterdir())
    assert after_kill["waiting"] == after_close["waiting"] == WAITING
    per_item = max(0.0, (after_close["held"] - empty_held) / WAITING)
    empty_note = "the same of an empty store"
    figures = [
        Figure(
            "put off, in batches of 500 with as many others",
            2 * WAITING / filled_s,
            "messages/s",
            100_000,
            "a round number",
        ),
        Figure("memory for each that waits", per_item, "B", 400, "before there were timer files"),
        Figure("disk for each that waits", timers / WAITING, "B", 24, "its entry"),
        Figure("start after an orderly end", after_close["opened"], "s", empty_s, empty_note),
        Figure("start after a kill", after_kill["opened"], "s", empty_s, empty_note),
        Figure("sweep, nothing due", 1e3 * after_close["swept"], "ms", 1, "a millisecond"),
        Figure(
            "list of the first 100 of a topic",
            1e3 * after_close["listed"],
            "ms",
            10,
            "ten milliseconds",
        ),
        Figure("look at one", 1e3 * after_close["found"], "ms", 1, "a millisecond"),
    ]
    show(
        f"{WAITING:,} delayed messages that wait",
        f"bodies of {BODY_BYTES} bytes, due in 1 to 30 days",
        figures,
    )


# ------------------------------------------------------------------------------------- a hundred
# thousand of one second


async def deliver(
    root: Path, *, with_sends: bool
) -> tuple[list[int], list[float], list[float], float]:
    """(lateness in ms, seconds of sends before, seconds of sends meanwhile, seconds it took),
    sorted.
    """
    house = await House.open(root)
    chance = Random(2)
    due_from_ms = house.clock.wall_ms() + 25_000
    # In no order: neighbours in time lie anywhere.
    await house.put_off(DUE, lambda _: due_from_ms + chance.randrange(SECOND_MS))
    spare_s = (due_from_ms - house.clock.wall_ms()) / 1e3
    assert spare_s > 3, f"it took too long to put them off: {spare_s:.1f} s are left"
    before: list[float] = []
    meanwhile: list[float] = []
    is_over = False

    async def send() -> None:
        """One at a time, on and on."""
        while not is_over:
            latencies = before if house.clock.wall_ms() < due_from_ms else meanwhile
            begun = perf_counter()
            await house.store.append(house.messages(1))
            latencies.append(perf_counter() - begun)
            await asyncio.sleep(0.005)

    senders = [asyncio.ensure_future(send()) for _ in range(8 if with_sends else 0)]
    while len(house.late_ms) < DUE:
        await house.service.run_once(house.clock.wall_ms())
        await asyncio.sleep(0.1)
    taken = house.clock.wall_ms() - due_from_ms
    is_over = True
    await asyncio.gather(*senders)
    await house.store.aclose()
    return sorted(house.late_ms), sorted(before), sorted(meanwhile), taken / 1e3


def run_due() -> None:
    for with_sends in (False, True):
        with tempfile.TemporaryDirectory(dir=".") as directory:
            late_ms, before, meanwhile, taken = in_process(
                _deliver_with if with_sends else _deliver_alone, Path(directory)
            )
        figures = [
            Figure(
                "delivered",
                len(late_ms) / taken,
                "messages/s",
                len(late_ms),
                "all within their second",
            ),
            *[
                Figure(f"late, {name}", max(1, at(late_ms, share)), "ms", 1_000, "a second")
                for name, share in (("half of them", 0.5), ("99 of 100", 0.99), ("the last", 1.0))
            ],
        ]
        if with_sends:
            limit = 1e3 * at(before, 0.99)
            figures.append(
                Figure(
                    "a send meanwhile, 99 of 100",
                    1e3 * at(meanwhile, 0.99),
                    "ms",
                    limit,
                    "before it began",
                )
            )
            figures.append(
                Figure(
                    "a send meanwhile, the slowest",
                    1e3 * at(meanwhile, 1.0),
                    "ms",
                    limit,
                    "99 of 100 before",
                )
            )
        title = f"{len(late_ms):,} due within one second" + (
            ", beside eight senders" if with_sends else ""
        )
        show(title, "scattered over the log in no order; synced", figures)


async def _deliver_alone(root: Path) -> tuple[list[int], list[float], list[float], float]:
    return await deliver(root, with_sends=False)


async def _deliver_with(root: Path) -> tuple[list[int], list[float], list[float], float]:
    return await deliver(root, with_sends=True)


def at(values: list[Any], share: float) -> float:
    return float(values[min(len(values) - 1, int(share * len(values)))])


def run() -> None:
    run_waiting()
    run_due()
