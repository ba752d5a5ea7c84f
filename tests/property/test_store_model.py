"""Any sequence of calls has the same answers on the embedded engine as on the reference engine,
restarts and kills included.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from storage.errors import MessagingError
from storage.formats.queue_entry import tag_hash
from storage.formats.stored_record import StoredRecord
from storage.local.options import FlushPolicy
from storage.memory import MemoryMessageStore
from storage.message import Durability, QueueId, StoredMessage
from storage.store import KeyQuery, Scanned, ScannedRecords, Snapshot
from tests.fault.campaign_size import sized
from tests.support.builders import message
from tests.support.model import ModelMachine, model_test
from tests.support.simulation import End

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


class StoreMachine(ModelMachine):
    """Drives both engines side by side, each on the same virtual time."""

    @initialize(
        flush=st.sampled_from(FlushPolicy),
        segment_bytes=st.sampled_from([16_384, 32_768]),
        file_entries=st.integers(1, 20),
    )
    def begin(self, flush: FlushPolicy, segment_bytes: int, file_entries: int) -> None:
        self.counts: dict[str, int] = {}
        self.begin_lives(
            flush,
            index_file_entries=20,
            segment_bytes=segment_bytes,
            queue_file_entries=file_entries,
            prepare_ahead_bytes=8_192,
        )
        self.memory = MemoryMessageStore(self.world.clock)
        for topic in TOPICS:
            self.create_topic(topic, 1)

    async def start(self) -> None:
        for topic, count in self.counts.items():
            await self.store.create_topic(topic, queue_count=count)

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
        self._both(lambda store: store.find_messages(KeyQuery(key, topics=[topic], max_messages=9)))

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
    def close_and_restart(self) -> None:
        self.restart(End.CLOSE)

    @rule()
    def kill(self) -> None:
        self.restart()
        # A snapshot that was saved just before the kill may or may not have been written, since
        # nothing is promised: both engines save another.
        self._both(lambda store: store.save_snapshot("table", Snapshot((b"",), {})))

    @invariant()
    def every_queue_is_the_same(self) -> None:
        for queue in QUEUES:
            self._both(lambda store, queue=queue: store.offsets(queue))
            self._both(lambda store, queue=queue: store.committed_offset("g", queue))
        self._both(lambda store: store.load_snapshot("table"))

    def _both(self, call: Any) -> Any:
        answers = [_comparable(self.answer(call(store))) for store in (self.store, self.memory)]
        assert answers[0] == answers[1]
        return answers[0]


def _comparable(answer: Any) -> Any:
    """Without what is an engine's own: addresses, store times, durability."""
    if isinstance(answer, MessagingError):
        return type(answer), getattr(answer, "available", None)
    if isinstance(answer, list):
        return [_comparable(one) for one in answer]
    if isinstance(answer, Scanned | ScannedRecords):
        return _comparable(list(answer[0])), answer.next_offset
    if isinstance(answer, StoredRecord):
        return _comparable(answer.message())
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


TestStoreModel = model_test(StoreMachine, examples=sized(ci=100, full=400), steps=30)
