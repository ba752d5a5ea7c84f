"""The message of an id or of a log offset, or the reason why a client does not get it."""

from collections.abc import Sequence

from app.problems import Refusal
from app.services import Reading
from scheduler import scheduled_message
from scheduler.schedule import Schedule
from storage.errors import CorruptRecord, InvalidRequest, MessageGone
from storage.formats import names, offset_id
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.identifiers import made_at_ms
from storage.message import StoredMessage
from storage.store import KeyQuery
from txn import half_message

_DELAYED = (names.TIMER_TOPIC, SCHEDULE_TOPIC)
# where a message is stored before it is in its topic
_WAITING = (names.HALF_TOPIC, *_DELAYED)


async def stored_or_waiting(
    reading: Reading, message_id: str
) -> tuple[StoredMessage, Schedule | None]:
    """The message; with its schedule, where it waits for its time.

    An offset message id of RocketMQ that is the id of no message gives the message of that place.

    Raises Refusal message_not_found, message_expired, record_corrupt.
    """
    try:
        return await _of_id(reading, message_id)
    except Refusal as refusal:
        place = offset_id.decode(message_id)
        if place is None or refusal.code != "message_not_found":
            raise
        found = await _at(reading, place.log_offset, store_host=place.store_host)
        if found and found[0].queue.topic in _DELAYED:
            return await _of_id(reading, found[0].message_id)
        if not found or found[0].queue.topic == names.HALF_TOPIC:
            raise
        if len(found) > 1:
            raise Refusal(
                "message_not_found",
                f"{message_id} is the id of {len(found)} messages that a broker stored as one: "
                f"GET /v1/messages?log_offset={place.log_offset} lists them",
                context={"log_offset": str(place.log_offset)},
            ) from None
        return found[0], None


async def at_log_offset(reading: Reading, log_offset: int) -> Sequence[StoredMessage]:
    """The messages of the record that begins there: several if a broker stored them as one.

    Raises Refusal message_not_found, message_expired, record_corrupt.
    """
    found = await _at(reading, log_offset)
    if not found:
        raise _nothing_at(reading, log_offset)
    topic = found[0].queue.topic
    if topic == names.HALF_TOPIC:
        refusal = Refusal(
            "message_not_found", f"the record at log offset {log_offset} is a half message"
        )
        raise await _of_transaction(reading, found[0], refusal)
    if topic in _DELAYED:
        message_id = found[0].message_id
        raise Refusal(
            "message_not_found",
            f"the record at log offset {log_offset} is the delayed message {message_id[:100]}: get "
            "it by this id",
            context={"message_id": message_id},
        )
    return found


async def _at(
    reading: Reading, log_offset: int, *, store_host: bytes | None = None
) -> list[StoredMessage]:
    """Also of half messages and of those that wait for their time. Raises Refusal
    record_corrupt.
    """
    topics = [topic.name for topic in reading.topics.all()]
    try:
        return await reading.store.read_at(
            log_offset, topics=[*topics, *_WAITING], store_host=store_host
        )
    except CorruptRecord as damage:
        raise Refusal(
            "record_corrupt",
            f"the record at log offset {log_offset} is damaged",
            context={"offset": str(log_offset)},
        ) from damage


def _nothing_at(reading: Reading, log_offset: int) -> Refusal:
    admin = reading.store.admin
    first = 0 if admin is None else admin.status().first_offset
    end = reading.store.stored_offset()
    context = {"min_offset": str(first), "max_offset": str(end)}
    if log_offset < first:
        return Refusal(
            "message_expired",
            f"the log begins at log offset {first}: retention has deleted {log_offset}",
            context=context,
        )
    if log_offset >= end:
        detail = f"the log ends at log offset {end}, before {log_offset}"
    else:
        detail = (
            f"no message that a client can read begins at log offset {log_offset}: it is inside of "
            "a record, or the record is the service's own or of a deleted topic"
        )
    return Refusal("message_not_found", detail, context=context)


async def with_transaction(reading: Reading, message_id: str, refusal: Refusal) -> Refusal:
    """The refusal of an unknown message; where an undecided or rolled-back transaction has the
    message, it says which.
    """
    if refusal.code != "message_not_found":
        return refusal
    halves = await reading.store.find_messages(
        KeyQuery(message_id, topics=[names.HALF_TOPIC], by_id=True, max_messages=1)
    )
    return await _of_transaction(reading, halves[0], refusal) if halves else refusal


async def _of_transaction(reading: Reading, half: StoredMessage, refusal: Refusal) -> Refusal:
    """The refusal of a half message, with its transaction where that is known."""
    transaction_id = half_message.transaction_id_of(half)
    transaction = await reading.find_transaction(transaction_id)
    if transaction is None:
        return refusal
    state = transaction.state.value
    return Refusal(
        refusal.code,
        f"message {half.message_id[:100]} is in transaction {transaction_id}, which is "
        f"{state.replace('_', ' ')}",
        context={"transaction_id": transaction_id, "state": state},
    )


async def _of_id(reading: Reading, message_id: str) -> tuple[StoredMessage, Schedule | None]:
    """The message; with its schedule, where it waits for its time. Raises as `_find`."""
    try:
        return await _find(reading, message_id), None
    except Refusal as refusal:
        if refusal.code != "message_not_found":
            raise
    waiting = await _waiting(reading, message_id)
    # Where there is none, it may have been delivered between the two looks.
    return waiting or (await _find(reading, message_id), None)


async def _find(reading: Reading, message_id: str) -> StoredMessage:
    """Raises Refusal message_not_found, message_expired, record_corrupt."""
    if not message_id.isprintable() or len(message_id) > 255:
        raise InvalidRequest(
            "a message id is 1 to 255 printable characters", pointer="/path/message_id"
        )
    topics = [topic.name for topic in reading.topics.all()]
    try:
        found = await reading.store.find_messages(
            KeyQuery(message_id, topics=topics, by_id=True, max_messages=1)
        )
        if not found and await _has_expired(reading, message_id):
            raise MessageGone(
                f"message {message_id[:100]} was stored too long ago: retention has dropped all "
                "of that time"
            )
    except CorruptRecord as damage:
        raise Refusal(
            "record_corrupt", f"the message {message_id[:100]} may be in a damaged part of the log"
        ) from damage
    if not found:
        raise Refusal("message_not_found", f"message {message_id[:100]} does not exist")
    return found[0]


async def _waiting(reading: Reading, message_id: str) -> tuple[StoredMessage, Schedule] | None:
    """The message of this id that waits for its time; None if there is none. Raises Refusal
    record_corrupt.
    """
    try:
        schedule = await reading.find_waiting(message_id)
        if schedule is None:
            return None
        queue, queue_offset = scheduled_message.message_at(schedule.entry.place)
        (message,) = await reading.store.read(queue, queue_offset, max_messages=1, max_bytes=1)
    except CorruptRecord as damage:
        raise Refusal("record_corrupt", f"the message {message_id[:100]} is damaged") from damage
    return message, schedule


async def _has_expired(reading: Reading, message_id: str) -> bool:
    """Was the id made before all that is left was stored?

    Not so of a message which waits for its time or its decision.
    """
    made_ms, admin = made_at_ms(message_id, "msg"), reading.store.admin
    if made_ms is None or admin is None:
        return False
    oldest_ms = await admin.oldest_stored_at_ms()
    if oldest_ms is None or made_ms >= oldest_ms:
        return False
    return not await reading.store.find_messages(
        KeyQuery(message_id, topics=_WAITING, by_id=True, max_messages=1)
    )
