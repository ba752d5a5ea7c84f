"""The findings of an import: parts of a broker's store that EscrowMQ does not keep, or that may be
seen twice. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping

from app.hand_over.found import Note
from app.store_moves.report import Finding, finding
from app.store_moves.store_folder import CONSUME_QUEUES, Listing
from storage.formats.topic_configs import TopicKind, broker_names, kind_of
from storage.message import OffsetRange, QueueId

_TRACES = "RMQ_SYS_TRACE_TOPIC"
_LITE = f"{CONSUME_QUEUES}/%LMQ%"
_POP_DATABASE = "kvStore"


def not_kept(
    notes: Iterable[Note], listing: Listing, bounds: Mapping[QueueId, OffsetRange]
) -> Iterator[Finding]:
    """`notes`: of the take-over; `bounds`: of the queues that have, or had, messages."""
    names: dict[tuple[str, str], list[str]] = {}
    for note in notes:
        names.setdefault((note.kind, note.what), []).append(note.name)
    for (kind, what), found in names.items():
        yield finding(f"{kind}_setting", f"{kind}: {what}", found)
    own = broker_names({queue.topic: None for queue in bounds})
    replies = [queue for queue in bounds if kind_of(queue.topic, own) is TopicKind.REPLY]
    traces = [queue for queue in bounds if queue.topic == _TRACES]
    for code, what, queues in (
        (
            "replies",
            "replies that the broker stored for its clients: they stay in the log",
            replies,
        ),
        ("traces", "traces of messages: they stay in the log, and are not served", traces),
    ):
        count = sum(bounds[queue].end - bounds[queue].first for queue in queues)
        yield finding(code, what, {queue.topic for queue in queues}, count=count)
    yield finding(
        "light_queues",
        "light queues (LMQ): their messages are served in their own topics alone",
        {path.split("/")[1] for path in listing.files if path.startswith(_LITE)},
    )
    yield finding(
        "compacted_topics",
        "topics with cleanup.policy COMPACTION: what is in the log is served, all of it, and "
        "nothing of compaction/",
        {path.split("/")[2] for path in listing.within("compaction/compactionLog")},
    )
    yield finding(
        "pop_database",
        "databases of messages that were received by POP: those that were not acknowledged are not "
        "delivered again",
        [_POP_DATABASE] if listing.within(_POP_DATABASE) else [],
    )


def twice(listing: Listing, groups: Iterable[str]) -> Iterator[Finding]:
    """List what consumers and producers may see a second time. `groups`: those taken over."""
    if "abort" in listing.files:
        yield finding(
            "broker_was_killed",
            "groups whose last offsets the broker had not written (up to 5 s of messages come "
            "again), as it was killed; decisions of its last 3 s are checked again",
            groups,
        )
