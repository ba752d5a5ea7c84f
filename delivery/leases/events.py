"""Events of leases, as messages of a reserved topic: for the replay at a start, and for audits.
Pure.

    topic rmq_sys_escrowmq_leases, queue 0; tag "lease"; body JSON, told apart by "event"

An event names messages by their places in the log. A run is a number of consecutive messages.
Times are wall milliseconds; each has the length of time with it, so that a clock that was set back
never makes a lease longer.
"""

import msgspec

from delivery.leases.tasks import TaskState, Wanted
from storage.formats.names import LEASE_TOPIC
from storage.formats.row import rows_of
from storage.message import Message, QueueId, Row

LEASE_QUEUE = QueueId(LEASE_TOPIC, 0)
_TAG = "lease"


class _Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    topic: str
    queue: int

    @property
    def queue_id(self) -> QueueId:
        return QueueId(self.topic, self.queue)


class Scan(_Row, frozen=True):
    """A range of a queue that was scanned for the first time. Its messages are settled, except
    those that are leased or passed over in it.
    """

    begin: int
    end: int


class LeasedRun(_Row, frozen=True):
    first: int
    count: int
    attempt: int


class Run(_Row, frozen=True):
    """Messages that one lease holds (or held)."""

    first: int
    count: int
    lease: int


class GivenReason(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The reason that a consumer gave when it rejected or gave up these messages."""

    reason: str
    runs: list[Run]


class Skip(_Row, frozen=True):
    """`why`: "lag" or "age"."""

    first: int
    count: int
    why: str


class DamagedMessage(_Row, frozen=True):
    """A message whose record cannot be read.

    `lease`: that held it, 0 for none; `log_offset`: of the record, if it is known.

    `known_to`: events before this one say what became of the queue's messages below this offset.
    """

    offset: int
    lease: int
    known_to: int
    reason: str
    log_offset: int | None = None


class ReturnedMessage(_Row, frozen=True):
    """`due_ms`: when the message is delivered again; `delay_ms`: the delay until then."""

    offset: int
    lease: int
    due_ms: int
    delay_ms: int


class ReleasedMessage(ReturnedMessage, frozen=True):
    """`attempt`: deliveries before the one that does not count."""

    attempt: int


class ExtendedMessage(_Row, frozen=True):
    offset: int
    lease: int
    until_ms: int
    lease_ms: int


class Position(_Row, frozen=True):
    offset: int


class LeaseEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event"):
    """Something that happened in one group."""

    group: str


class Leased(LeaseEvent, frozen=True, tag="leased"):
    """Messages were leased together. No message: all those read from the retry topic belonged to
    cancelled requests.

    `arrived`: number of messages of the retry topic that were read for the first time, by the queue
    of their first delivery ("orders/2"). An earlier version counted these, and the `waiting` of a
    retry, by topic.
    """

    lease: int
    until_ms: int
    lease_ms: int
    runs: list[LeasedRun]
    scans: list[Scan] = []
    passed: list[LeasedRun] = []  # of an ordered group: left for later, since their key is held
    arrived: dict[str, int] = {}
    worker: str | None = None
    attempt_id: str | None = None


class Acked(LeaseEvent, frozen=True, tag="acked"):
    runs: list[Run]


class Extended(LeaseEvent, frozen=True, tag="extended"):
    messages: list[ExtendedMessage]


class Expired(LeaseEvent, frozen=True, tag="expired"):
    """The leases of these messages expired; the messages are delivered again."""

    runs: list[Run]


class Returned(LeaseEvent, frozen=True, tag="returned"):
    """Messages were rejected by their consumer, and wait for their retry in their queue."""

    messages: list[ReturnedMessage]
    reasons: list[GivenReason] = []


class Released(LeaseEvent, frozen=True, tag="released"):
    """Messages were returned unprocessed by their consumer. They wait in their queue; the delivery
    does not count as an attempt.
    """

    messages: list[ReleasedMessage]
    reasons: list[GivenReason] = []


class Retried(LeaseEvent, frozen=True, tag="retried"):
    """Messages were rejected by their consumer; the same append stored copies, delayed, for the
    retry topic.

    `waiting`: number of copies by queue ("orders/2"); `generation`: of the group, also stored in
    the copies. `unprocessed`: the delivery does not count as an attempt of the copies.
    """

    runs: list[Run]
    waiting: dict[str, int]
    generation: int | None = None
    reasons: list[GivenReason] = []
    unprocessed: bool = False


class DeadLettered(LeaseEvent, frozen=True, tag="dead_lettered"):
    """Messages were stored in the dead-letter topic, in the same append."""

    runs: list[Run]
    reasons: list[GivenReason] = []


class Discarded(LeaseEvent, frozen=True, tag="discarded"):
    """Messages were dropped: they used up their attempts and the group keeps no dead letters, or
    the log no longer has them.
    """

    runs: list[Run]
    reasons: list[GivenReason] = []


class Skipped(LeaseEvent, frozen=True, tag="skipped"):
    """Messages were skipped by the rules of the group before their first delivery."""

    runs: list[Skip]


class Damaged(LeaseEvent, frozen=True, tag="damaged"):
    """Messages that cannot be delivered because their records are damaged.

    The same append stored a dead letter for each, unless the group keeps none. `arrived`: as in
    `Leased`, for retries whose queue is known.
    """

    messages: list[DamagedMessage]
    arrived: dict[str, int] = {}


class Reset(LeaseEvent, frozen=True, tag="reset"):
    """The group continues at these positions; its leases in these queues have ended.

    `ends_retries`: retries of these queues from before `generation` are void. An earlier version
    ended those of whole `topics`. `voided`: number of these that had already arrived in the retry
    topic.
    """

    positions: list[Position]
    generation: int
    topics: list[str] = []
    voided: list[Run] = []
    ends_retries: bool = False


class Deleted(LeaseEvent, frozen=True, tag="deleted"):
    """The group was deleted. A group created under this name again begins after these ends of its
    retry and dead-letter topics.
    """

    generation: int
    retry_end: int
    dead_letter_end: int


class TopicDeleted(LeaseEvent, frozen=True, tag="topic_deleted"):
    """A topic was deleted: the leases, positions, retries and dead letters that the group had of it
    are gone.

    `generation`, `voided`: as for `Reset`. `dead_letters`: offsets in the dead-letter topic.
    """

    topic: str
    generation: int
    voided: list[Run] = []
    dead_letters: list[int] = []


class Redriven(LeaseEvent, frozen=True, tag="redriven"):
    """Dead letters were redriven to the group, in the same append.

    `offsets`: in the dead-letter topic.
    """

    task_id: str
    offsets: list[int]
    message_ids: list[str]
    waiting: dict[str, int]


class Purged(LeaseEvent, frozen=True, tag="purged"):
    """Dead letters before this offset were purged."""

    before: int


class TaskBegun(LeaseEvent, frozen=True, tag="task_begun"):
    """A redrive was started: of the dead letters before `end` that match."""

    task_id: str
    wanted: Wanted
    end: int
    total: int
    begun_at_ms: int
    reset_attempts: bool = True
    max_per_second: int | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None


class TaskEnded(LeaseEvent, frozen=True, tag="task_ended"):
    """A redrive ended. `stubs`: ids of matching dead letters that stand for damaged messages and
    cannot be redriven.
    """

    task_id: str
    state: TaskState
    ended_at_ms: int
    stubs: list[str] = []


AnyLeaseEvent = (
    Leased | Acked | Extended | Expired | Returned | Released | Retried | DeadLettered | Discarded
    | Skipped | Damaged | Reset | Deleted | TopicDeleted | Redriven | Purged | TaskBegun | TaskEnded
)  # fmt: skip

_decoder: msgspec.json.Decoder[AnyLeaseEvent] = msgspec.json.Decoder(AnyLeaseEvent)
_encode = msgspec.json.Encoder().encode


def event_message(event: AnyLeaseEvent, *, now_ms: int) -> Message:
    return _message(_encode(event), now_ms)


def event_row(event: AnyLeaseEvent, *, now_ms: int) -> Row:
    """The row of `event_message`."""
    return _QUEUE, _OWN, _encode(event), _TAGS_CODE, now_ms, _TRANSACTION, _PREPARED, None


def _message(body: bytes, now_ms: int) -> Message:
    return Message(queue=LEASE_QUEUE, message_id="", body=body, born_at_ms=now_ms, tag=_TAG)


(_ROW,) = rows_of([_message(b"", 0)])  # but for its body and its time that of every event
_QUEUE, _OWN, _TAGS_CODE, _TRANSACTION, _PREPARED = _ROW[0], _ROW[1], _ROW[3], _ROW[5], _ROW[6]


def read_event(message: Message) -> AnyLeaseEvent:
    return _decoder.decode(message.body)
