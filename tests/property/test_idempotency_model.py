"""Any sequence of keyed sends, kills, snapshots and hours sends each request once within its
window, as a plain dict says.
"""

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from app.idempotency.keys import IdempotencyKeys, KeyedRequest
from storage.errors import IdempotencyKeyReused
from storage.local.options import FlushPolicy
from storage.message import QueueId
from tests.fault.campaign_size import sized
from tests.support.builders import message
from tests.support.model import ModelMachine, model_test
from tests.support.simulation import End

ORDERS = QueueId("orders", 0)
WINDOW_MS = 10_000
KEPT_BYTES = 1_500  # that memory holds of the keys: most are forgotten soon
keys = st.integers(0, 8).map(str)


class Answered(NamedTuple):
    fingerprint: str
    at_ms: int
    message_ids: list[str]


class IdempotencyMachine(ModelMachine):
    """Drives the table over the embedded engine beside a dict of what was answered."""

    @initialize(flush=st.sampled_from(FlushPolicy))
    def begin(self, flush: FlushPolicy) -> None:
        self.model: dict[str, Answered] = {}
        self.sent = 0
        self.begin_lives(flush, index_file_entries=20)

    async def start(self) -> None:
        await self.store.create_topic("orders", queue_count=1)
        self.keys = IdempotencyKeys(self.store, self.world.clock, kept_bytes=KEPT_BYTES)
        await self.keys.start()

    async def close(self) -> None:
        await self.keys.save_snapshot()
        await self.store.aclose()

    @rule(key=keys, count=st.integers(1, 4), fingerprint=st.sampled_from(["one", "one", "other"]))
    def send(self, key: str, count: int, fingerprint: str) -> None:
        now_ms = self.now_ms
        known = self.model.get(key)
        if known is not None and abs(now_ms - known.at_ms - WINDOW_MS) < 200:
            return  # the sends themselves take time; what counts at the border is asked elsewhere
        if known is not None and now_ms - known.at_ms > WINDOW_MS:
            known = None
        answer = self.call(self._send(key, count, fingerprint))
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
        self.sleep(ms)

    @rule()
    def keep_a_snapshot(self) -> None:
        self.call(self.keys.save_snapshot())

    @rule()
    def kill(self) -> None:
        self.restart()

    @rule()
    def close_and_restart(self) -> None:
        self.restart(End.CLOSE)

    @invariant()
    def each_request_is_stored_once(self) -> None:
        assert self.call(self.store.offsets(ORDERS)).end == self.sent

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


TestIdempotencyModel = model_test(IdempotencyMachine, examples=sized(ci=20, full=40), steps=40)
