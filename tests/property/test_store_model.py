"""Any sequence of calls has the same answers on the embedded engine as on the reference engine,
restarts and kills included.
"""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from storage.errors import MessagingError
from storage.files.simulated import SimulatedDisk
from storage.formats.queue_entry import tag_hash
from storage.formats.stored_record import StoredRecord
from storage.local.options import FlushPolicy, LocalStoreOptions
from storage.memory import MemoryMessageStore
from storage.message import Durability, QueueId, StoredMessage
from storage.store import Scanned, ScannedRecords, Snapshot
from tests.fault.campaign_size import sized
from tests.support.builders import message
from tests.support.simulation import World

TOPICS = ("orders", "emails")
QUEUES = [QueueId(topic, number) for topic in (*TOPICS, "nowhere") for number in range(3)]
queues = st.sampled_from(QUEUES)
# mostly a known one: a message for an unknown queue refuses its whole append
homes = st.sampled_from([*[QueueId(topic, 0) for topic in TOPICS] * 9, *QUEUES])
keys = st.sampled_from(["k", "l"])
texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8)
bodies = st.one_of(st.binary(max_size=30), st.integers(0, 3_000).map(lambda n: b"x" * n))
sent = st.builds(
    message,
    bodies,
    queue=homes,
    message_id=texts,
    key=st.none() | keys | texts,
    tag=st.none() | st.sampled_from(["t", "u"]) | texts,
    properties=st.dictionaries(
        st.sampled_from(["a", "b.c", "d-e"]), st.just("") | texts, max_size=2
    ),
)


class StoreMachine(RuleBasedStateMachine):
    """Drives both engines side by side, each on the same virtual time."""

    @initialize(
        flush=st.sampled_from(FlushPolicy),
        segment_bytes=st.sampled_from([16_384, 32_768]),
        file_entries=st.integers(1, 20),
    )
    def begin(self, flush: FlushPolicy, segment_bytes: int, file_entries: int) -> None:
        self.options = LocalStoreOptions(
            index_slots=8,
            index_file_entries=20,
            segment_bytes=segment_bytes,
            queue_file_entries=file_entries,
            flush=flush,
            flush_interval_ms=20,
            prepare_ahead_bytes=8_192,
            queue_flush_interval_ms=5,
            snapshot_interval_ms=20,
        )
        self.disk = SimulatedDisk()
        self.counts: dict[str, int] = {}
        self.starts = 0
        self._start()
        self.memory = MemoryMessageStore(self.world.clock)
        for topic in TOPICS:
            self.create_topic(topic, 1)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 3))
    def create_topic(self, topic: str, count: int) -> None:
        answer = self._both(lambda store: store.create_topic(topic, queue_count=count))
        if answer is None:
            self.counts[topic] = count

    @rule(topic=st.sampled_from(TOPICS), stays_away=st.booleans())
    def delete_topic(self, topic: str, stays_away: bool) -> None:
        self._both(lambda store: store.delete_topic(topic))
        self.counts.pop(topic, None)
        if not stays_away:
            self.create_topic(topic, 1)

    @rule(topic=st.sampled_from(TOPICS), key=keys)
    def look_up(self, topic: str, key: str) -> None:
        self._both(lambda store: store.find_messages(key, topics=[topic], max_messages=9))

    @rule(
        given=st.lists(sent, min_size=1, max_size=6),
        durability=st.sampled_from([None, Durability.SYNCED]),
    )
    def append(self, given: list[Any], durability: Durability | None) -> None:
        self._both(lambda store: store.append(given, durability=durability))

    @rule(
        queue=queues,
        at=st.integers(0, 40),
        count=st.integers(1, 20),
        size=st.sampled_from([1, 100, 5_000, 1 << 30]),
    )
    def read(self, queue: QueueId, at: int, count: int, size: int) -> None:
        self._both(lambda store: store.read(queue, at, max_messages=count, max_bytes=size))

    @rule(
        at=st.integers(0, 3),
        tag=st.sampled_from(["t", "u"]),
        scanned=st.integers(1, 20),
        count=st.integers(1, 5),
        size=st.sampled_from([1, 100, 5_000, 1 << 30]),
    )
    def scan(self, at: int, tag: str, scanned: int, count: int, size: int) -> None:
        given = {"max_scanned": scanned, "max_messages": count, "max_bytes": size}
        tagged = {**given, "tag_codes": {tag_hash(tag)}}
        for queue in QUEUES:
            self._both(lambda store, queue=queue: store.read_tagged(queue, at, **tagged))
            self._both(lambda store, queue=queue: store.read_records(queue, at, **tagged))
            self._both(lambda store, queue=queue: store.read_records(queue, at, **given))

    @rule(places=st.lists(st.tuples(queues, st.integers(0, 20)), max_size=6))
    def read_each(self, places: list[tuple[QueueId, int]]) -> None:
        self._both(lambda store: store.read_each(places, max_bytes=1 << 30))

    @rule(queue=queues, group=st.sampled_from(["g", "h"]), offset=st.integers(-1, 20))
    def commit_offset(self, queue: QueueId, group: str, offset: int) -> None:
        self._both(lambda store: store.commit_offset(group, queue, offset))

    @rule(data=st.binary(max_size=9))
    def keep(self, data: bytes) -> None:
        self._both(lambda store: store.save_snapshot("table", Snapshot((data,), {})))

    @rule(ms=st.integers(1, 50))
    def pass_time(self, ms: int) -> None:
        self.world.loop.now += ms / 1000

    @rule()
    def restart(self) -> None:
        self.world.call(self.store.aclose())
        self._restart()

    @rule()
    def kill(self) -> None:
        self._restart()
        # What was kept a moment before the kill may or may not have been written: nothing is
        # promised, so begin anew.
        self._both(lambda store: store.save_snapshot("table", Snapshot((b"",), {})))

    @invariant()
    def every_queue_is_the_same(self) -> None:
        if not hasattr(self, "store"):
            return
        for queue in QUEUES:
            self._both(lambda store, queue=queue: store.offsets(queue))
            self._both(lambda store, queue=queue: store.committed_offset("g", queue))
        self._both(lambda store: store.load_snapshot("table"))

    def _both(self, call: Any) -> Any:
        answers = [self._answer(call, store) for store in (self.store, self.memory)]
        assert answers[0] == answers[1]
        return answers[0]

    def _answer(self, call: Any, store: Any) -> Any:
        try:
            return _comparable(self.world.call(call(store)))
        except MessagingError as error:
            return _comparable(error)

    def _restart(self) -> None:
        self.world.end()
        self.disk = self.disk.after_kill()
        self._start()
        for topic, count in self.counts.items():
            self.world.call(self.store.create_topic(topic, queue_count=count))

    def _start(self) -> None:
        self.starts += 1
        self.world = World(self.disk, seed=self.starts)
        self.store = self.world.call(self.world.open_store(self.options))


def _comparable(answer: Any) -> Any:
    """Without what is an engine's own: addresses, store times, durability."""
    if isinstance(answer, list):
        return [_comparable(one) for one in answer]
    if isinstance(answer, Scanned | ScannedRecords):
        return _comparable(list(answer[0])), answer.next_offset
    if isinstance(answer, StoredRecord):
        return _comparable(answer.message())
    if isinstance(answer, MessagingError):
        return type(answer), getattr(answer, "available", None)
    if isinstance(answer, StoredMessage):
        return (
            answer.queue,
            answer.queue_offset,
            answer.message_id,
            answer.body,
            answer.key,
            answer.tag,
            dict(answer.properties),
        )
    if hasattr(answer, "queue_offset"):
        return (answer.queue, answer.queue_offset)
    return answer


TestStoreModel = StoreMachine.TestCase
TestStoreModel.settings = settings(
    max_examples=sized(ci=100, full=400),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
