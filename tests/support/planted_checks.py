"""A store in which everything that the checks can find stands so many times, among traffic in which
nothing is wrong.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from delivery.leases import events, retry_message
from delivery.leases.events import AnyLeaseEvent, LeasedRun, ReleasedMessage, ReturnedMessage, Run
from scheduler import marks, scheduled_message
from storage.formats import delay_progress, index_file, names, properties, queue_entry
from storage.formats import record as records
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.delay_progress import LevelOffsets
from storage.formats.index_file import ENTRY, SLOT, Header
from storage.local.queues import group_offsets
from storage.message import Message, QueueId, StoredMessage
from tests.support import plain_audit
from tests.support.planted import changed
from tests.support.written_log import POLICY, Transactions, WrittenLog, write_checkpoint
from txn import half_message
from txn.half_message import AnsweredUnknown, CheckAnswer, CheckFailed, Op
from txn.states import Resolver, TxnState

GROUP = "billing"
LEASE_MS = 30_000
_MINUTE_MS = 60_000
_BEYOND = 1 << 30  # no queue is so long
_SLOTS, _ENTRIES = 64, 20_000
_QUEUES = [QueueId("orders", 0), QueueId("orders", 1), QueueId("emails", 0)]


class Story:
    """What happens in the log, step by step; `plant` counts what is wrong."""

    def __init__(self, log: WrittenLog, randomness: Random) -> None:
        self.log = log
        self.randomness = randomness
        self.planted: Counter[str] = Counter()
        self._numbers = iter(range(1 << 30))

    def pass_ms(self, ms: int) -> None:
        self.log.now_ms += ms

    def send(self, queue: QueueId | None = None, **delay: int) -> StoredMessage:
        number = next(self._numbers)
        message = Message(
            queue=queue or self.randomness.choice(_QUEUES),
            message_id=f"msg_{number:06}",
            body=b"x" * self.randomness.randrange(1, 40),
            born_at_ms=self.log.now_ms - self.randomness.randrange(20),
            key=f"k{number}",
        )
        if delay:
            message = scheduled_message.delay(
                scheduled_message.with_delay(message, **delay), self.log.now_ms
            )
        return self.log.append(message)[0]

    # ----------------------------------------------------------------------------------------------
    # delays

    def deliver(
        self, waiting: StoredMessage, *, comes: bool = True, revision: int = 1
    ) -> StoredMessage | None:
        entry = scheduled_message.entry_of(waiting)
        mark = marks.encode(marks.Delivered(entries=(entry,)), now_ms=self.log.now_ms)
        come = [scheduled_message.unwrap(waiting)] if comes else []
        return self.log.append(*come, mark)[0]

    def mark(self, mark: marks.AnyMark, *messages: Message) -> list[StoredMessage]:
        return self.log.append(*messages, marks.encode(mark, now_ms=self.log.now_ms))

    def wait_for(self, waiting: StoredMessage, *, more_ms: int = 5) -> None:
        self.log.now_ms = max(self.log.now_ms, scheduled_message.due_ms_of(waiting) + more_ms)

    # ----------------------------------------------------------------------------------------------
    # leases

    def tell(self, event: AnyLeaseEvent, *messages: Message) -> list[StoredMessage]:
        return self.log.append(*messages, events.event_message(event, now_ms=self.log.now_ms))

    def lease(self, message: StoredMessage, attempt: int = 1) -> int:
        lease = next(self._numbers)
        run = LeasedRun(*message.queue, message.queue_offset, 1, attempt)
        until_ms = self.log.now_ms + LEASE_MS
        self.tell(
            events.Leased(
                group=GROUP, lease=lease, until_ms=until_ms, lease_ms=LEASE_MS, runs=[run]
            )
        )
        return lease

    def skip(self, first: StoredMessage, last: StoredMessage) -> None:
        count = last.queue_offset - first.queue_offset + 1
        self.tell(
            events.Skipped(
                group=GROUP, runs=[events.Skip(*first.queue, first.queue_offset, count, "lag")]
            )
        )

    def run_of(self, message: StoredMessage, lease: int) -> list[Run]:
        return [Run(*message.queue, message.queue_offset, 1, lease)]

    def ack(self, message: StoredMessage, lease: int) -> None:
        self.tell(events.Acked(group=GROUP, runs=self.run_of(message, lease)))

    def put_off(
        self, message: StoredMessage, lease: int, attempt: int, *, is_stored: bool = True
    ) -> StoredMessage:
        copy = retry_message.retry_copy(message, GROUP, attempts=attempt, generation=0)
        waiting = scheduled_message.delay(
            scheduled_message.with_delay(copy, delay_ms=10_000, again=True), self.log.now_ms
        )
        event = events.Retried(group=GROUP, runs=self.run_of(message, lease), waiting={})
        return self.tell(event, *([waiting] if is_stored else []))[0]

    def bury(
        self, message: StoredMessage, lease: int, attempt: int, *, is_stored: bool = True
    ) -> StoredMessage:
        copy = retry_message.dead_letter_copy(message, GROUP, attempts=attempt, reason="bad")
        event = events.DeadLettered(group=GROUP, runs=self.run_of(message, lease))
        return self.tell(event, *([copy] if is_stored else []))[0]

    # ----------------------------------------------------------------------------------------------
    # positions

    def reader(self) -> str:
        """A group of its own."""
        return f"reader_{next(self._numbers)}"

    def commit(self, group: str, queue: QueueId, queue_offset: int) -> None:
        message_id = f"msg_o{next(self._numbers)}"
        told = group_offsets.commit_message(
            group, queue, queue_offset, message_id=message_id, now_ms=self.log.now_ms
        )
        self.log.append(told)

    # ----------------------------------------------------------------------------------------------
    # transactions

    def begin(self) -> tuple[Transactions, list[StoredMessage]]:
        shop = Transactions(self.log)
        return shop, shop.begin(f"txn_{next(self._numbers)}")

    def answer(self, halves: list[StoredMessage], times: int = 1) -> None:
        for _ in range(times):
            self.pass_ms(POLICY.interval_ms)
            given = {"transaction_id": half_message.transaction_id_of(halves[0]), "revision": 2}
            self.check(
                AnsweredUnknown(
                    **given, check_number=1, next_check_at_ms=self.log.now_ms + POLICY.interval_ms
                )
            )

    def check(self, event: half_message.AnyCheckEvent) -> None:
        self.log.append(
            half_message.check_message(
                event, message_id=f"msg_c{next(self._numbers)}", now_ms=self.log.now_ms
            )
        )


# -------------------------------------------------------------------------------------------------
# where nothing is wrong


def _delays(story: Story) -> None:
    for delay in ({"delay_ms": 5_000}, {"delay_ms": 7_777}, {"due_ms": story.log.now_ms + 3_000}):
        waiting = story.send(**delay)
        story.wait_for(waiting)
        story.deliver(waiting)
    cancelled, moved, put_back = (story.send(delay_ms=7_777) for _ in range(3))
    entry = scheduled_message.entry_of(cancelled)
    story.mark(marks.Cancelled("sch_1", entry))
    entry = scheduled_message.entry_of(moved)
    story.mark(marks.Moved("sch_2", entry, story.log.now_ms + 20_000))
    story.pass_ms(20_500)
    later = marks.Delivered(entries=(marks.next_entry(entry, story.log.now_ms - 100),))
    story.mark(later, scheduled_message.unwrap(moved))
    entry = scheduled_message.entry_of(put_back)
    copy = scheduled_message.put_back(
        put_back, story.log.now_ms + 2_000, scheduled_message.CarriedState(revision=2)
    )
    again = story.mark(marks.PutBack(entries=(entry,)), copy)[0]
    story.wait_for(again)
    story.deliver(again)


def _leases(story: Story) -> None:
    first, second, third = (story.send() for _ in range(3))
    story.ack(first, story.lease(first))
    lease = story.lease(second)
    story.pass_ms(LEASE_MS + 5)
    story.tell(events.Expired(group=GROUP, runs=story.run_of(second, lease)))
    lease = story.lease(second, attempt=2)
    returned = ReturnedMessage(*second.queue, second.queue_offset, lease, story.log.now_ms, 0)
    story.tell(events.Returned(group=GROUP, messages=[returned]))
    lease = story.lease(second, attempt=3)
    released = ReleasedMessage(*second.queue, second.queue_offset, lease, story.log.now_ms, 0, 2)
    story.tell(events.Released(group=GROUP, messages=[released]))
    story.ack(second, story.lease(second, attempt=3))
    back = _retried(story, third, 1)
    story.ack(back, story.lease(back, attempt=2))


def _retried(story: Story, message: StoredMessage, attempt: int) -> StoredMessage:
    """Handed out and put off; the copy that has come back."""
    waiting = story.put_off(message, story.lease(message, attempt=attempt), attempt)
    story.wait_for(waiting)
    back = story.deliver(waiting)
    assert back is not None
    return back


def _dead_letters(story: Story) -> None:
    message = story.send()
    back = _retried(story, message, 1)
    dead = story.bury(back, story.lease(back, attempt=2), 2)
    copy = retry_message.retry_copy(dead, GROUP, attempts=0, generation=0)
    redriven = events.Redriven(
        group=GROUP,
        task_id="task_1",
        offsets=[dead.queue_offset],
        message_ids=[dead.message_id],
        waiting={},
    )
    again = story.tell(redriven, copy)[0]
    story.ack(again, story.lease(again, attempt=1))


def _reset(story: Story) -> None:
    message = story.send()
    story.ack(message, story.lease(message, attempt=4))
    position = events.Position(*message.queue, message.queue_offset)
    story.tell(events.Reset(group=GROUP, positions=[position], generation=1, ends_retries=True))
    story.ack(message, story.lease(message))


def _skips(story: Story) -> None:
    """The run has a message in its midst that was given once: it comes until it is settled.

    A reset brings the others, too.
    """
    first, given, last = (story.send(_QUEUES[0]) for _ in range(3))
    lease = story.lease(given)
    story.pass_ms(LEASE_MS + 5)
    story.tell(events.Expired(group=GROUP, runs=story.run_of(given, lease)))
    story.skip(first, last)
    story.ack(given, story.lease(given, attempt=2))
    position = events.Position(*last.queue, last.queue_offset)
    story.tell(events.Reset(group=GROUP, positions=[position], generation=1, ends_retries=False))
    story.ack(last, story.lease(last))


def _commits(story: Story) -> None:
    """At a queue's end nothing waits; what was said once and is so no more does not count."""
    group, sent = story.reader(), story.send()
    story.commit(group, sent.queue, _BEYOND)
    story.commit(group, sent.queue, sent.queue_offset + 1)
    story.commit(group, QueueId("nobody_has_sent", 0), 0)


def _transactions(story: Story) -> None:
    shop, halves = story.begin()
    shop.commit(halves)
    shop, halves = story.begin()
    story.answer(halves, 2)
    decide_by_check(shop, halves)
    shop, halves = story.begin()
    given = {"transaction_id": half_message.transaction_id_of(halves[0]), "revision": 2}
    story.check(
        CheckFailed(**given, check_number=1, asked_at_ms=story.log.now_ms, why="timeout", detail="")
    )
    story.answer(halves, POLICY.max_answers)
    shop.hold(halves)
    shop.resume(halves)
    story.answer(halves, 1)
    shop.roll_back(halves)


def decide_by_check(shop: Transactions, halves: list[StoredMessage]) -> None:
    op = Op(
        half_offsets=tuple(half.queue_offset for half in halves),
        transaction_id=half_message.transaction_id_of(halves[0]),
        state=TxnState.COMMITTED,
        resolved_by=Resolver.CHECK,
        resolved_at_ms=shop.log.now_ms,
        reason=None,
        finals_from=(),
        answer=CheckAnswer(check_number=3),
    )
    shop.log.append(*shop.finals(halves), half_message.op_message(op))


CLEAN: tuple[Callable[[Story], None], ...] = (
    _delays,
    _leases,
    _dead_letters,
    _reset,
    _skips,
    _commits,
    _transactions,
)


# --------------------------------------------------------------------------------------------------
# what can go wrong


def _early(story: Story) -> None:
    story.deliver(story.send(delay_ms=7_777))


def _late(story: Story) -> None:
    waiting = story.send(delay_ms=7_777)
    story.wait_for(waiting, more_ms=_MINUTE_MS + 500)
    story.deliver(waiting)


def _passed_over(story: Story) -> None:
    story.send(delay_ms=5_000)


def _marked_and_not_there(story: Story) -> None:
    waiting = story.send(delay_ms=5_000)
    story.wait_for(waiting)
    story.deliver(waiting, comes=False)


def _delivered_twice(story: Story) -> None:
    waiting = story.send(delay_ms=5_000)
    story.wait_for(waiting)
    story.deliver(waiting)
    story.deliver(waiting)


def _came_twice(story: Story) -> None:
    """Under one mark."""
    waiting = story.send(delay_ms=5_000)
    story.wait_for(waiting)
    story.log.append(scheduled_message.unwrap(waiting))
    story.deliver(waiting)


def _cancelled_and_delivered(story: Story) -> None:
    waiting = story.send(delay_ms=5_000)
    story.mark(marks.Cancelled("sch_3", scheduled_message.entry_of(waiting)))
    story.wait_for(waiting)
    story.deliver(waiting)


def _lower_attempt(story: Story) -> None:
    message = story.send()
    lease = story.lease(message, attempt=3)
    story.tell(events.Expired(group=GROUP, runs=story.run_of(message, lease)))
    story.pass_ms(LEASE_MS)
    story.ack(message, story.lease(message, attempt=2))


def _lower_attempt_of_a_copy(story: Story) -> None:
    back = _retried(story, story.send(), 3)
    again = _retried(story, back, 1)
    story.ack(again, story.lease(again, attempt=4))


def _put_off_and_lost(story: Story) -> None:
    message = story.send()
    story.put_off(message, story.lease(message), 1, is_stored=False)


def _buried_and_lost(story: Story) -> None:
    back = _retried(story, story.send(), 1)
    story.bury(back, story.lease(back, attempt=2), 2, is_stored=False)


def _after_ack(story: Story) -> None:
    message = story.send()
    story.ack(message, story.lease(message))
    story.ack(message, story.lease(message, attempt=2))


def _twice_at_once(story: Story) -> None:
    message = story.send()
    story.lease(message)
    story.ack(message, story.lease(message, attempt=2))


def _skipped_and_handed_out(story: Story) -> None:
    """Twice skipped, and one finding all the same."""
    message = story.send()
    story.skip(message, message)
    story.skip(message, message)
    story.ack(message, story.lease(message))


def _asked_again_and_again(story: Story) -> None:
    _, halves = story.begin()
    story.answer(halves, POLICY.max_answers + 1)


def _held_early(story: Story) -> None:
    shop, halves = story.begin()
    story.answer(halves, 2)
    shop.hold(halves)


def _asked_afterwards(story: Story) -> None:
    shop, halves = story.begin()
    shop.commit(halves)
    story.answer(halves)


def _gap(story: Story) -> None:
    queue = story.randomness.choice(_QUEUES)
    story.send(queue)
    story.log.queue_ends[queue] += story.randomness.randrange(1, 4)
    story.send(queue)


def _repeat(story: Story) -> None:
    queue = story.randomness.choice(_QUEUES)
    story.send(queue)
    story.log.queue_ends[queue] -= 1
    story.send(queue)


def _committed_beyond(story: Story) -> None:
    story.commit(story.reader(), story.randomness.choice(_QUEUES), _BEYOND)


def _committed_in_no_queue(story: Story) -> None:
    story.commit(story.reader(), QueueId("nobody_has_sent", 0), 1)


def _reset_beyond(story: Story) -> None:
    position = events.Position("orders", 0, _BEYOND)
    story.tell(
        events.Reset(group=story.reader(), positions=[position], generation=1, ends_retries=False)
    )


def _half_without_topic(story: Story) -> None:
    _, (half,) = story.begin()
    system = {name: value for name, value in half.system.items() if name != properties.REAL_TOPIC}
    story.log.append(changed(half, system=system, message_id=f"{half.message_id}_again"))


def _half_in_another_queue(story: Story) -> None:
    _, (half,) = story.begin()
    story.log.append(
        changed(half, queue=QueueId(names.HALF_TOPIC, 1), message_id=f"{half.message_id}_again")
    )


def _stored_again(story: Story) -> None:
    story.log.append(story.send())


def _stored_again_and_again(story: Story) -> None:
    """One finding: elsewhere, and once more there."""
    message = story.send(_QUEUES[0])
    for _ in range(2):
        story.log.append(changed(message, queue=_QUEUES[1]))


# kind -> what plants one of it
WRONG: dict[str, tuple[Callable[[Story], None], ...]] = {
    "delivered_early": (_early,),
    "delivered_late": (_late,),
    "delivery_lost": (_passed_over, _marked_and_not_there),
    "delivery_doubled": (_delivered_twice, _came_twice),
    "delivered_though_cancelled": (_cancelled_and_delivered,),
    "attempts_went_down": (_lower_attempt, _lower_attempt_of_a_copy),
    "retry_lost": (_put_off_and_lost,),
    "dead_letter_lost": (_buried_and_lost,),
    "handed_out_after_settled": (_after_ack,),
    "handed_out_twice": (_twice_at_once,),
    "handed_out_though_skipped": (_skipped_and_handed_out,),
    "asked_too_often": (_asked_again_and_again,),
    "held_too_early": (_held_early,),
    "asked_though_decided": (_asked_afterwards,),
    "queue_gap": (_gap,),
    "queue_repeat": (_repeat,),
    "position_outside": (_committed_beyond, _committed_in_no_queue, _reset_beyond),
    "half_malformed": (_half_without_topic, _half_in_another_queue),
    "stored_twice": (_stored_again, _stored_again_and_again),
}
# Of these only the derived files are spoiled; how many are, of each store.
SPOILED = {
    "queue_entry_missing": 3, "queue_entry_wrong": 2, "key_missing": 3, "key_entry_wrong": 3,
    "key_unreachable": 1,
    "checkpoint_ahead": 2, "delay_position_outside": 3,
}  # fmt: skip


def plant(
    root: Path, *, times: int, seed: int = 1, is_clean: bool = False, segment_bytes: int = 1 << 18
) -> tuple[Path, Counter[str]]:
    """A store, closed, and how many findings of each kind are in it."""
    randomness = Random(seed)
    log = WrittenLog(root, segment_bytes=1 << 16)
    story = Story(log, randomness)
    plan: list[tuple[str | None, Callable[[Story], None]]] = [
        (None, part) for part in CLEAN for _ in range(times)
    ]
    if not is_clean:
        # Not as many of each, so that none is taken for another.
        ways = [(kind, way) for kind, several in WRONG.items() for way in several]
        plan += [(kind, way) for at, (kind, way) in enumerate(ways) for _ in range(times + at % 3)]
    randomness.shuffle(plan)
    for kind, happens in plan:
        happens(story)
        if kind is not None:
            story.planted[kind] += 1
    story.pass_ms(2 * _MINUTE_MS)
    _delays(story)  # later than all that has not come,
    story.pass_ms(20 * _MINUTE_MS)
    story.send()  # and long ago
    log.close()
    _derive(log)
    _write_delay_progress(log, beyond=0 if is_clean else 1)
    if not is_clean:
        write_checkpoint(
            root,
            log.end,
            stored_ms=log.stored_ms,
            index_ms=log.stored_ms + 1,
            confirm_offset=log.end + 8,
        )
        _spoil_queues(log)
        _spoil_index(log)
        story.planted.update(SPOILED)
    return root, story.planted


# --------------------------------------------------------------------------------------------------
# derived files


def _derive(log: WrittenLog) -> None:
    """Consume queues and one index file, as a service would have written them."""
    read = plain_audit.read_log(log.folder, end=log.end)
    segments = {int(path.name): path.read_bytes() for path in sorted(log.folder.iterdir())}
    files: dict[QueueId, dict[int, bytes]] = {}
    keys: list[tuple[str, StoredMessage]] = []
    for message in read.messages:
        assert message.log_offset is not None
        base = max(base for base in segments if base <= message.log_offset)
        length, _ = records.start(segments[base], message.log_offset - base)
        entry = queue_entry.QueueEntry(message.log_offset, length, 0)
        files.setdefault(message.queue, {})[message.queue_offset] = queue_entry.encode(*entry)
        found = [message.message_id, *(message.key or "").split()]
        keys += [(index_file.index_key(message.queue.topic, key), message) for key in found if key]
    for queue, entries in files.items():
        folder = log.root / "consumequeue" / queue.topic / str(queue.number)
        folder.mkdir(parents=True)
        empty = bytes(queue_entry.ENTRY_BYTES)
        raw = b"".join(entries.get(number, empty) for number in range(max(entries) + 1))
        (folder / names.file_name(0)).write_bytes(raw)
    _write_index(log.root / "index" / "20270115080000000", keys)


def _write_delay_progress(log: WrittenLog, *, beyond: int) -> None:
    """Everything that waited is done with; or `beyond` so many more, in two levels and of the
    timers.
    """
    ends = {
        queue.number + 1: end
        for queue, end in log.queue_ends.items()
        if queue.topic == SCHEDULE_TOPIC
    }
    levels = {level: end + beyond for level, end in ends.items()}
    assert len(levels) == 2
    timers = log.queue_ends[QueueId(names.TIMER_TOPIC, 0)] + beyond
    (log.root / "config").mkdir()
    raw = delay_progress.encode_levels(LevelOffsets(levels, 1, is_ours=True), now_ms=log.now_ms)
    (log.root / "config" / "delayOffset.json").write_bytes(raw)
    (log.root / "config" / "timercheck").write_bytes(
        delay_progress.encode_timercheck(timers, counter=1, now_ms=log.now_ms)
    )


def _write_index(path: Path, keys: list[tuple[str, StoredMessage]]) -> None:
    entries = np.zeros(len(keys) + 1, ENTRY)
    heads = np.zeros(_SLOTS, SLOT)
    hashes = index_file.key_hashes([key for key, _ in keys])
    begin_ms = keys[0][1].stored_at_ms
    for number, (key_hash, (_, message)) in enumerate(zip(hashes.tolist(), keys, strict=True), 1):
        slot = key_hash % _SLOTS
        entries[number] = (
            key_hash,
            message.log_offset,
            (message.stored_at_ms - begin_ms) // 1000,
            heads[slot],
        )
        heads[slot] = number
    first, last = keys[0][1], keys[-1][1]
    assert first.log_offset is not None
    assert last.log_offset is not None
    used = int(np.count_nonzero(heads))
    header = Header(
        begin_ms, last.stored_at_ms, first.log_offset, last.log_offset, used, len(entries)
    )
    raw = index_file.encode_header(header) + heads.tobytes() + entries.tobytes()
    path.parent.mkdir()
    path.write_bytes(raw.ljust(index_file.file_bytes(_SLOTS, _ENTRIES), b"\0"))


def _spoil_queues(log: WrittenLog) -> None:
    """In the middle of a queue: some entries are gone, others point elsewhere."""
    path = log.root / "consumequeue" / "orders" / "0" / names.file_name(0)
    entries = bytearray(path.read_bytes())
    places = [
        at
        for at in range(40, len(entries), queue_entry.ENTRY_BYTES)
        if any(entries[at : at + queue_entry.ENTRY_BYTES])
    ]
    gone, moved = SPOILED["queue_entry_missing"], SPOILED["queue_entry_wrong"]
    for at in places[:gone]:
        entries[at : at + queue_entry.ENTRY_BYTES] = bytes(queue_entry.ENTRY_BYTES)
    for at in places[gone : gone + moved]:
        entries[at + 7] ^= 8
    path.write_bytes(entries)


def _spoil_index(log: WrittenLog) -> None:
    (path,) = (log.root / "index").iterdir()
    raw = bytearray(path.read_bytes())
    for number in range(10, 10 + SPOILED["key_missing"]):
        raw[index_file.entry_at(_SLOTS, number) + 4 + 7] ^= 4  # log offsets are multiples of 8
    chained = (
        at
        for at in range(index_file.entry_at(_SLOTS, 100), len(raw), ENTRY.itemsize)
        if int.from_bytes(raw[at + 16 : at + 20], "big")
    )
    for at, _ in zip(chained, range(SPOILED["key_unreachable"]), strict=False):
        raw[at + 16 : at + 20] = bytes(4)
    path.write_bytes(raw)
