"""A delayed message: its form in the log until it is due, and what is noted about it there.

Pure.

    one of the 18 levels   topic SCHEDULE_TOPIC_XXXX, queue level - 1; property DELAY: due so long
                           after it was stored
    any other time         topic rmq_sys_wheel_timer, queue 0; properties TIMER_DELIVER_MS: when,
                           TIMER_OUT_MS: RocketMQ's slot

A message of ours says in both when it is due, by the clock of when it was delayed; not by its time
of storage, which may be far ahead: it never goes back, so a clock that was wrong for a moment
stays in the log.

Both kinds carry the real topic and queue as properties, so a broker that is given the files keeps
the times. What we add is the id of the schedule; it is the message's own with another prefix, so
the key index finds the one by the other. Source: RocketMQ HookUtils#transformDelayLevelMessage,
TimerMessageStore.
"""

import re
from zlib import crc32

import msgspec

from storage.errors import NotADelayedMessage
from storage.formats import names, properties
from storage.formats import record as records
from storage.formats.delay_levels import DELAY_LEVEL, DELAYS_MS, SCHEDULE_TOPIC, deliver_at_ms
from storage.message import NEVER_MS, DueEntry, Message, QueueId, StoredMessage, resend

TIMER_QUEUE = QueueId(names.TIMER_TOPIC, 0)
LEVEL_COUNT = len(DELAYS_MS)
# the end of the year 9999, the last one that a time of the API can say
LAST_DUE_MS = 253_402_300_799_999
_PRECISION_MS = 1_000  # of RocketMQ's timer wheel
OFFSET_BITS = 44  # of a place; the bits above them say which queue
_BY_PLACE = re.compile("sch_([LT])([0-9]{1,5})-([0-9]{1,13})")
_AGAIN = "again"  # for the id of the schedule
_NO_TARGETS = (names.HALF_TOPIC, names.OP_TOPIC, SCHEDULE_TOPIC, names.TIMER_TOPIC)
_BROKERS_TOPIC = re.compile("[%|A-Za-z0-9_-][%|A-Za-z0-9_.-]{0,254}")
_MOST_QUEUES = 1_024  # of a topic that gets them as its messages come due
_ROLL_TIMES = "TIMER_ROLL_TIMES"  # on a message that a broker put into the timer queue again
_RECALLS = "TIMER_DEL_UNIQKEY"  # on a broker's message that only recalls another: topic+id
_LEVELS = {delay_ms: level for level, delay_ms in enumerate(DELAYS_MS, 1)}
# on a message of a level; from before there was this, one is due when a broker would deliver it
DUE_MS = "__schedule_due_ms"
SO_FAR = "__schedule_so_far"  # on a message that was put back, JSON of CarriedState
_TIMES = frozenset(
    {
        DELAY_LEVEL,
        DUE_MS,
        properties.TIMER_DELAY_MS,
        properties.TIMER_DELAY_SEC,
        properties.TIMER_DELIVER_MS,
        properties.TIMER_OUT_MS,
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        _ROLL_TIMES,
    }
)
_OURS = frozenset({DUE_MS, SO_FAR})
_OF_THE_WAIT = _TIMES | {properties.REAL_TOPIC, properties.REAL_QUEUE, SO_FAR}


class CarriedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of a schedule that its message carries when it is stored again."""

    revision: int
    parked: str | None = msgspec.field(name="set_aside", default=None)  # why


FIRST_REVISION = 1  # of a schedule that was never changed
_NEW = CarriedState(FIRST_REVISION)
_so_far_decoder = msgspec.json.Decoder(CarriedState)


# --------------------------------------------------------------------------------------------------
# into the wait


def with_delay(
    message: Message, *, delay_ms: int | None = None, due_ms: int | None = None, again: bool = False
) -> Message:
    """The message with its delay (from the time of its append) or its time as properties; its queue
    is still the real one.

    `again`: the message may have waited before, as a retry: its schedule is named by its place.
    """
    schedule_id = _AGAIN if again else f"sch_{message.message_id.removeprefix('msg_')}"
    if due_ms is not None:
        note = {properties.TIMER_DELIVER_MS: str(due_ms)}
    elif delay_ms in _LEVELS:
        note = {DELAY_LEVEL: str(_LEVELS[delay_ms])}
    else:
        note = {properties.TIMER_DELAY_MS: str(delay_ms)}
    before = message.system
    if again:
        # What a broker has delivered still has the times by which it waited.
        before = {name: value for name, value in before.items() if name not in _TIMES}
    return msgspec.structs.replace(
        message, system={**before, **note, properties.SCHEDULE_ID: schedule_id}
    )


def delay(message: Message, now_ms: int) -> Message:
    """Move a message with a noted delay to the delay topic; others stay as they are."""
    given = message.system
    if properties.SCHEDULE_ID not in given:
        return message
    real = {
        properties.REAL_TOPIC: message.queue.topic,
        properties.REAL_QUEUE: str(message.queue.number),
    }
    if DELAY_LEVEL in given:
        queue = QueueId(SCHEDULE_TOPIC, int(given[DELAY_LEVEL]) - 1)
        due_ms = deliver_at_ms(given[DELAY_LEVEL], now_ms)
        return msgspec.structs.replace(
            message, queue=queue, system={**given, **real, DUE_MS: str(due_ms)}
        )
    delay_ms = given.get(properties.TIMER_DELAY_MS)
    due_ms = (
        int(given[properties.TIMER_DELIVER_MS])
        if delay_ms is None
        else min(now_ms + int(delay_ms), LAST_DUE_MS)
    )
    times = {
        properties.TIMER_DELIVER_MS: str(due_ms),
        properties.TIMER_OUT_MS: str(timer_slot_ms(due_ms)),
    }
    kept = {name: value for name, value in given.items() if name != properties.TIMER_DELAY_MS}
    return msgspec.structs.replace(message, queue=TIMER_QUEUE, system={**kept, **real, **times})


def timer_slot_ms(due_ms: int) -> int:
    """The slot of RocketMQ's wheel: the previous whole second, since a slot is emptied when its
    second is over.
    """
    return (due_ms - 1) // _PRECISION_MS * _PRECISION_MS


def put_back(message: StoredMessage, due_ms: int, so_far: CarriedState) -> Message:
    """A copy of the message, to be stored at the end of the log, with the present time of its
    schedule.
    """
    kept = {name: value for name, value in message.system.items() if name not in _TIMES}
    times = {
        properties.TIMER_DELIVER_MS: str(due_ms),
        properties.TIMER_OUT_MS: str(timer_slot_ms(due_ms)),
    }
    # One that a broker delayed is ours from now on, and called by its place as before.
    ours = {properties.SCHEDULE_ID: _AGAIN, **kept, SO_FAR: msgspec.json.encode(so_far).decode()}
    return resend(message, TIMER_QUEUE, {**ours, **times})


# --------------------------------------------------------------------------------------------------
# out of the wait


def is_delayed(message: Message) -> bool:
    return message.queue.topic in (SCHEDULE_TOPIC, names.TIMER_TOPIC)


def due_ms_of(message: StoredMessage) -> int:
    """When a message of a delay topic is due, as it was stored; at once if it states no time."""
    return due_ms_at(message, message.stored_at_ms)


def due_ms_at(message: Message, stored_at_ms: int) -> int:
    system = message.system
    if message.queue.topic == SCHEDULE_TOPIC:
        noted = system.get(DUE_MS, "")
        if _is_number(noted):
            return min(int(noted), LAST_DUE_MS)
        return deliver_at_ms(system.get(DELAY_LEVEL, ""), stored_at_ms)
    delay_ms = system.get(properties.TIMER_DELAY_MS, "")
    if properties.SCHEDULE_ID in system and _is_number(delay_ms):
        # From before it was left out: due so long after it was stored, as it was answered and is in
        # the timer files.
        return min(stored_at_ms + int(delay_ms), LAST_DUE_MS)
    deliver, slot = (
        system.get(properties.TIMER_DELIVER_MS, ""),
        system.get(properties.TIMER_OUT_MS, ""),
    )
    due_ms = (
        int(deliver)
        if _is_number(deliver)
        else int(slot) + _PRECISION_MS
        if _is_number(slot)
        else stored_at_ms
    )
    return min(due_ms, LAST_DUE_MS)


def schedule_id_of(message: StoredMessage) -> str:
    """The id of the message's schedule. A message that a broker delayed has none of its own, nor
    has one that waits again: its place is the id.
    """
    own = message.system.get(properties.SCHEDULE_ID, _AGAIN)
    return schedule_id_at(message.queue, message.queue_offset) if own == _AGAIN else own


def schedule_id_at(queue: QueueId, queue_offset: int) -> str:
    """The schedule id of a message that has none of its own."""
    return f"sch_{'L' if queue.topic == SCHEDULE_TOPIC else 'T'}{queue.number}-{queue_offset}"


def place_by_id(schedule_id: str) -> tuple[QueueId, int] | None:
    """The place in an id that is made of a place; None for any other id."""
    found = _BY_PLACE.fullmatch(schedule_id)
    if found is None:
        return None
    return QueueId(SCHEDULE_TOPIC if found[1] == "L" else names.TIMER_TOPIC, int(found[2])), int(
        found[3]
    )


def message_ids_by(schedule_id: str) -> tuple[str, str]:
    """Possible ids of the message of the schedule."""
    own = schedule_id.removeprefix("sch_")
    return f"msg_{own}", own


def is_brokers(message: StoredMessage) -> bool:
    """Whether a broker delayed it, which writes no mark when it delivers."""
    return properties.SCHEDULE_ID not in message.system


def is_rolled(message: StoredMessage) -> bool:
    """Whether a broker put it into the timer queue again, in place of an earlier one."""
    return message.queue == TIMER_QUEUE and _ROLL_TIMES in message.system


def recalled_id(message: StoredMessage) -> str | None:
    """The id of the message that this one recalls; None for any other.

    Source: RocketMQ RecallMessageProcessor, TimerMessageStore#buildDeleteKey.
    """
    key = message.system.get(_RECALLS) if message.queue == TIMER_QUEUE else None
    return None if key is None else key.removeprefix(f"{real_topic(message)}+")


def entry_of(message: StoredMessage) -> DueEntry:
    """The entry of the index before any change."""
    so_far = so_far_of(message)
    due_ms = due_ms_of(message) + (NEVER_MS if so_far.parked is not None else 0)
    place = place_of(message.queue, message.queue_offset)
    return DueEntry(due_ms, place, so_far.revision, label_of(real_topic(message)))


def parked_entry(place: int) -> DueEntry:
    """The entry of a message that could not be read before it was ever in the index: without a time
    and a topic.
    """
    return DueEntry(NEVER_MS, place, 0, 0)


def so_far_of(message: Message) -> CarriedState:
    text = message.system.get(SO_FAR)
    return _NEW if text is None else _so_far_decoder.decode(text)


def place_of(queue: QueueId, queue_offset: int) -> int:
    """The place of a message of a delay topic, as one number."""
    return (2 * queue.number + (queue.topic == SCHEDULE_TOPIC)) << OFFSET_BITS | queue_offset


def message_at(place: int) -> tuple[QueueId, int]:
    """The queue and the offset of a place."""
    number, is_level = divmod(place >> OFFSET_BITS, 2)
    return QueueId(SCHEDULE_TOPIC if is_level else names.TIMER_TOPIC, number), place & (
        (1 << OFFSET_BITS) - 1
    )


def label_of(topic: str) -> int:
    """Label to select the messages of a topic; 0 for internal topics, which are not selected."""
    return 0 if names.is_reserved_name(topic) else max(1, crc32(topic.encode("utf-8")))


def real_topic(message: Message) -> str:
    return message.system.get(properties.REAL_TOPIC, "")


def is_made_on_delivery(queue: QueueId) -> bool:
    """Whether the queue is created by its first message, as at a broker.

    That is so in topics that no client can create: of a broker itself, of retries, or with a name
    that only RocketMQ allows. Not for a light queue, which has no messages of its own.
    """
    topic, number = queue
    return (
        not (names.is_valid_name(topic) and not names.is_reserved_name(topic))
        and not topic.startswith(names.LIGHT_QUEUE_PREFIX)
        and _BROKERS_TOPIC.fullmatch(topic) is not None
        and number < _MOST_QUEUES
    )


def is_for_the_broker(message: Message) -> bool:
    """Whether its topic is one that RocketMQ keeps for itself, such as for notes on POP; a retry
    topic is not.
    """
    topic = real_topic(message)
    return names.is_reserved_name(topic) and not topic.startswith(names.RETRY_PREFIX)


def unwrap(message: StoredMessage) -> Message:
    """The message as consumers see it. Raises NotADelayedMessage."""
    topic, number = (
        message.system.get(properties.REAL_TOPIC, ""),
        message.system.get(properties.REAL_QUEUE, ""),
    )
    if not topic or not _is_number(number):
        raise NotADelayedMessage(
            f"number {message.queue_offset} of {message.queue} does not say where it is to go"
        )
    if topic in _NO_TARGETS or topic.startswith(names.OWN_PREFIX):
        raise NotADelayedMessage(
            f"number {message.queue_offset} of {message.queue} is to go to {topic}"
        )
    # A broker delivers all properties.
    has_all = is_brokers(message) or records.is_of_a_broker(message.header)
    left_out = _OURS if has_all else _OF_THE_WAIT
    system = {name: value for name, value in message.system.items() if name not in left_out}
    # A group receives its retries from one queue; one of a broker may have several.
    queue = QueueId(topic, 0 if topic.startswith(names.RETRY_PREFIX) else int(number))
    # A broker, too, names no half in what comes out of a wait.
    return resend(message, queue, system, prepared_log_offset=0)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
