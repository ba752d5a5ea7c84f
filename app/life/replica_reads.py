"""Reads of messages at a replica, of what it has: everything that is safe at its service, up to the
last that it has heard of.

It never says that something does not exist, which it may not know of yet: it sends the client to
the service then.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from app.bodies.thread import BodyThread
from app.http.exchange import Reply
from app.long_polls import LongPolls, Waiting
from app.observability.metrics import Metrics
from app.problems import Refusal, as_refusal
from app.registry.followed_topics import FollowedTopics
from app.replicas.follower import Follower
from app.services import Answered
from delivery.groups import Subscription
from scheduler.schedule import Schedule
from storage.clock import Clock
from storage.errors import MessagingError
from storage.local.replica_store import LocalReplica
from txn.transaction import Transaction

log = structlog.get_logger()

_LOOK_S = 1.0  # so often it looks for changes of topics

# What is so here, and may not be so at the service.
_NOT_KNOWN = {
    "topic_not_found",
    "queue_not_found",
    "message_not_found",
    "offset_beyond_end",
    "record_corrupt",
}


class ReplicaReads:
    """The reads of one replica. Event loop only."""

    def __init__(
        self,
        clock: Clock,
        metrics: Metrics,
        topics: FollowedTopics,
        body_thread: BodyThread,
        follower: Follower,
        *,
        not_primary: Callable[[], Refusal],
        max_body_values: int,
        most_waiting: int,
    ) -> None:
        """`not_primary`: sends a client to the service. `most_waiting`: long polls at once."""
        self.clock = clock
        self.metrics = metrics
        self.topics = topics
        self.body_thread = body_thread
        self.max_body_values = max_body_values
        self.long_polls = LongPolls(clock, most=most_waiting, on_changed=metrics.long_polls.set)
        self.is_stopping = False
        self._follower = follower
        self._not_primary = not_primary

    @property
    def are_possible(self) -> bool:
        """Whether there is a log, and its topics are known."""
        return self._follower.readable is not None and self.topics.are_known

    @property
    def store(self) -> LocalReplica:
        """Raises Refusal."""
        store = self._follower.readable
        if store is None:
            raise self._not_primary()
        return store

    async def watch_topics(self) -> None:
        """Keep the topics up to date, until it is cancelled."""
        while True:
            store = self._follower.readable
            if store is not None:
                try:
                    await self.topics.refresh(store)
                except Exception:
                    log.exception("followed_topics_failed")
            await asyncio.sleep(_LOOK_S)

    def begin_stop(self) -> None:
        """Answer every long poll now."""
        self.is_stopping = True
        self.long_polls.end_all()
        store = self._follower.readable
        if store is not None:
            store.stop_waiting()

    def marked(self, answer: Answered) -> Answered:
        if isinstance(answer, Waiting):
            answer.then(self.marked)
        elif isinstance(answer, Reply):
            return answer._replace(headers={**answer.headers, **self._headers()})
        return answer

    def head_lines(self) -> bytes:
        lines = [f"{name.lower()}: {value}\r\n" for name, value in self._headers().items()]
        return "".join(lines).encode("ascii")

    def _headers(self) -> dict[str, str]:
        """How far it is. `operations.OF_REPLICAS` has their meaning."""
        headers = {
            "Store-Role": "replica",
            "Store-Safe-Offset": str(self._follower.readable_end),
        }
        if self._follower.behind_ms is not None:
            headers["Store-Behind-Ms"] = str(self._follower.behind_ms)
        return headers

    def pressure_header(self) -> Mapping[str, str]:
        """Return no header: nothing is sent to a replica."""
        return {}

    def error_for_client(self, error: MessagingError) -> MessagingError:
        return self._not_primary() if as_refusal(error).code in _NOT_KNOWN else error

    def subscriptions_of(self, group: str) -> tuple[Subscription, ...]:
        """Raises Refusal: the service knows the groups."""
        raise self._not_primary()

    async def find_waiting(self, message_id: str) -> Schedule | None:
        """Return None: the schedule may be cancelled meanwhile."""
        return None

    async def find_transaction(self, transaction_id: str) -> Transaction | None:
        """Return None: the transaction may be decided meanwhile."""
        return None
