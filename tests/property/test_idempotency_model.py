"""Any sequence of keyed sends, kills, snapshots and hours sends each request once within its
window, as a plain dict says.
"""

import asyncio
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.idempotency import IdempotencyKeys, KeyedRequest
from storage.errors import IdempotencyKeyReused
from storage.files.simulated import SimulatedDisk
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.message import QueueId
from tests.fault.campaign_size import sized
from tests.support.builders import message
from tests.support.simulation import World

ORDERS = QueueId("orders", 0)
WINDOW_MS = 10_000
KEPT_BYTES = 1_500  # that memory holds of the keys: most are forgotten soon
keys = st.integers(0, 8).map(str)


class Answered(NamedTuple):
    fingerprint: str
    at_ms: int
    message_ids: list[str]


class IdempotencyMachine(RuleBasedStateMachine):
    """Drives the table over the embedded engine beside a dict of what was answered."""

    @initialize(flush=st.sampled_from(FlushPolicy))
    def begin(self, flush: FlushPolicy) -> None:
        self.options = LocalStoreOptions(
            index_slots=8,
            index_file_entries=20,
            segment_bytes=65_536,
            flush=flush,
            flush_interval_ms=20,
            prepare_ahead_bytes=16_384,
            queue_flush_interval_ms=5,
            snapshot_interval_ms=20,
        )
        self.model: dict[str, Answered] = {}
        self.sent = 0
        self.starts = 0
        self.wall_ms = 1_800_000_000_000
        self.disk = SimulatedDisk()
        self._start()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()

    @rule(key=keys, count=st.integers(1, 4), fingerprint=st.sampled_from(["one", "one", "other"]))
    def send(self, key: str, count: int, fingerprint: str) -> None:
        now_ms = self.world.clock.wall_ms()
        known = self.model.get(key)
        if known is not None and abs(now_ms - known.at_ms - WINDOW_MS) < 200:
            return  # the sends themselves take time; what counts at the border is asked elsewhere
        if known is not None and now_ms - known.at_ms > WINDOW_MS:
            known = None
        answer = self.world.call(self._send(key, count, fingerprint))
        if known is None:
            assert isinstance(answer, list)
            assert len(answer) == count
            self.model[key] = Answered(fingerprint, now_ms, answer)
        elif known.fingerprint != fingerprint:
            assert isinstance(answer, IdempotencyKeyReused)
        else:
            assert answer == known.message_ids

    @rule(ms=st.sampled_from([1, 500, 4_000, WINDOW_MS + 500]))
    def pass_time(self, ms: int) -> None:
        self.world.call(asyncio.sleep(ms / 1000))

    @rule()
    def keep_a_snapshot(self) -> None:
        self.world.call(self.keys.save_snapshot())

    @rule()
    def kill(self) -> None:
        self._restart()

    @rule()
    def close_and_restart(self) -> None:
        self.world.call(self.keys.save_snapshot())
        self.world.call(self.store.aclose())
        self._restart()

    @invariant()
    def each_request_is_stored_once(self) -> None:
        if hasattr(self, "keys"):
            assert self.world.call(self.store.offsets(ORDERS)).end == self.sent

    async def _send(
        self, key: str, count: int, fingerprint: str
    ) -> list[str] | IdempotencyKeyReused:
        request = KeyedRequest("sendMessageBatch orders", key, fingerprint)
        try:
            before = await self.keys.lookup(request, window_ms=WINDOW_MS)
        except IdempotencyKeyReused as refused:
            return refused
        if before is not None:
            return [stored.message_id for stored, _ in await self.keys.find(before)]
        given = [
            message(queue=ORDERS, message_id=f"m{self.sent + number}") for number in range(count)
        ]
        await self.keys.append(request, "orders", dict(enumerate(given)), self.store.append)
        self.sent += count
        return [one.message_id for one in given]

    def _start(self) -> None:
        self.starts += 1
        self.world = World(self.disk, seed=self.starts, wall_ms=self.wall_ms)
        self.store = self.world.call(self.world.open_store(self.options))

        async def start() -> IdempotencyKeys:
            await self.store.create_topic("orders", queue_count=1)
            started = IdempotencyKeys(self.store, self.world.clock, kept_bytes=KEPT_BYTES)
            await started.start()
            return started

        self.keys = self.world.call(start())

    def _restart(self) -> None:
        self.wall_ms = self.world.clock.wall_ms() + 1
        self.world.end()
        self.disk = self.world.disk.after_kill()
        self._start()


TestIdempotencyModel = IdempotencyMachine.TestCase
TestIdempotencyModel.settings = settings(
    max_examples=sized(ci=20, full=40),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
