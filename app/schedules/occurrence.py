"""Messages of occurrences of a cron schedule: checked when it is created, built when it fires."""

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import UNSET

from app.bodies.thread import THREAD_BYTES
from app.encoding import codec
from app.http.exchange import RequestLimit
from app.messages.build import build, request_bytes
from app.messages.schemas import MessageInput
from app.problems import Refusal, invalid_field
from app.registry.payload_schema import until_checked
from app.registry.topics import Topic, Topics
from scheduler.cron_schedule import CronSchedule
from storage.clock import Clock
from storage.errors import InvalidMessage, MessageTooLarge
from storage.identifiers import Identifiers
from storage.message import Message

SCHEDULE_ID = "schedule_id"  # what the message says of where it comes from
OCCURRENCE = "occurrence"
MAX_BYTES = 64 << 10  # of the message as JSON: every schedule's is in memory

REQUEST_LIMIT = RequestLimit(request_bytes(MAX_BYTES), MAX_BYTES)
# a larger one comes without what was sent, which is what is kept
assert REQUEST_LIMIT.request_bytes <= THREAD_BYTES

_DEPTH = 2  # of the value of its `json` field in the request
_decoder = msgspec.json.Decoder(MessageInput)


def builder(
    topics: Topics, identifiers: Identifiers, clock: Clock
) -> Callable[[CronSchedule, int], Awaitable[Message]]:
    """The function that builds the message of an occurrence; it raises RejectedError."""

    async def build_occurrence(schedule: CronSchedule, moment_ms: int) -> Message:
        topic = topics.get(schedule.topic)

        async def build_once() -> Message:
            return _build(
                _decoder.decode(schedule.message),
                topic,
                schedule_id=schedule.schedule_id,
                moment_ms=moment_ms,
                message_id=identifiers.new("msg"),
                now_ms=clock.wall_ms(),
            )

        try:
            return await until_checked(build_once)
        # The topic is not any more what it was when the schedule was made. A check that cannot be
        # made now is no Refusal: the schedule is tried again.
        except Refusal as refusal:
            raise InvalidMessage(refusal.detail) from None

    return build_occurrence


def check(given: MessageInput, topic: Topic, *, schedule_id: str, now_ms: int) -> bytes:
    """The message as the registry keeps it.

    Raises Refusal (its pointers are within the message) and what `build` raises.
    """
    for name in ("delay_ms", "deliver_at", "delay_level", "require_durability"):
        if getattr(given, name) is not UNSET:
            raise invalid_field(
                f"/{name}", "not_allowed", f"the message of a cron schedule has no {name}"
            )
    for name in (SCHEDULE_ID, OCCURRENCE):
        if given.properties is not UNSET and name in given.properties:
            raise invalid_field(
                f"/properties/{name}", "not_allowed", f"the service sets the property {name} itself"
            )
    _build(given, topic, schedule_id=schedule_id, moment_ms=now_ms, message_id="", now_ms=now_ms)
    encoded = msgspec.json.encode(given)
    if len(encoded) > MAX_BYTES:
        detail = (
            f"the message takes {len(encoded)} bytes of JSON, a cron schedule's has at most "
            f"{MAX_BYTES}"
        )
        raise MessageTooLarge(detail, limit_bytes=MAX_BYTES)
    return encoded


def read(message: bytes) -> MessageInput:
    return _decoder.decode(message)


def _build(
    given: MessageInput,
    topic: Topic,
    *,
    schedule_id: str,
    moment_ms: int,
    message_id: str,
    now_ms: int,
) -> Message:
    own = {} if given.properties is UNSET else given.properties
    named = {**own, SCHEDULE_ID: schedule_id, OCCURRENCE: codec.rfc3339(moment_ms)}
    return build(
        msgspec.structs.replace(given, properties=named),
        topic,
        message_id=message_id,
        now_ms=now_ms,
        depth=_DEPTH,
    )
