"""The service as this example sees it: every request that it sends, and how it goes on when no
answer comes.

Each request may be sent again without harm, so there is one rule for all of them: repeat until an
answer comes. A begin carries its own transaction id and an Idempotency-Key, so the second one is
told about the first; a commit of a committed transaction is answered like the first commit; reading
changes nothing.
"""

import time
from collections.abc import Iterator
from typing import Any

import httpx

from examples.flights.data import Flight
from examples.flights.ledger import Outcome

TOPIC = "departures"
PRODUCER_GROUP = "airport"
QUEUES = 4

# Short, because the demo is: the service asks about a transaction when it is two seconds old, then
# every second.
_CHECK = {"first_after_ms": 2_000, "interval_ms": 1_000, "max_answers": 100}
_CHECK_WAIT_MS = 1_000
_PAUSE_SECONDS = 0.05
_GIVE_UP_SECONDS = 60.0
_PAGE = 1_000


class ServiceGone(Exception):
    """The service has given no answer for much longer than a restart takes."""


class Refused(Exception):
    """The service understood, and said no for good."""


class Service:
    """One keep-alive connection; each process and each thread has its own."""

    def __init__(self, url: str) -> None:
        # trust_env: no proxy of the environment stands between us and loopback.
        self._client = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def close(self) -> None:
        self._client.close()

    # ----------------------------------------------------------------------------------------------
    # producer

    def begin(self, transaction_id: str, flight: Flight) -> str:
        """The message is stored, and seen by nobody yet.

        Returns the id that it will have for good.
        """
        message = {"key": str(flight.number), "tag": flight.origin, "json": flight.body}
        body = {
            "transaction_id": transaction_id,
            "producer_group": PRODUCER_GROUP,
            "business_key": str(flight.number),
            "messages": [{"topic": TOPIC, "message": message}],
            "check": _CHECK,
        }
        begun = self._ask(
            "POST", "/v1/transactions", body, headers={"Idempotency-Key": transaction_id}
        )
        return str(begun["messages"][0]["message_id"])

    def decide(self, transaction_id: str, outcome: Outcome) -> None:
        """Commit or roll back. Raises Refused where it was decided otherwise before."""
        self._ask("POST", f"/v1/transactions/{transaction_id}/{outcome}")

    # ----------------------------------------------------------------------------------------------
    # checker

    def receive_checks(self) -> list[dict[str, Any]]:
        """Questions that wait for an answer; waits a moment for one."""
        path = f"/v1/producer-groups/{PRODUCER_GROUP}/checks/receive"
        received = self._ask("POST", path, {"max_checks": 100, "wait_ms": _CHECK_WAIT_MS})
        return list(received["checks"])

    def answer_checks(self, answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What became of each answer."""
        answered = self._ask(
            "POST", f"/v1/producer-groups/{PRODUCER_GROUP}/checks/answer", {"answers": answers}
        )
        return list(answered["results"])

    # ----------------------------------------------------------------------------------------------
    # consumer

    def create_topic(self) -> None:
        self._ask(
            "POST",
            "/v1/topics",
            {"topic": TOPIC, "queues": QUEUES, "message_types": ["transactional"]},
        )

    def messages(self, queue_id: int) -> Iterator[dict[str, Any]]:
        """Everything in the queue, from its beginning to its end."""
        offset, end = 0, None
        while end is None or offset < end:
            query = f"offset={offset}&max_messages={_PAGE}&max_bytes={16 << 20}"
            page = self._ask("GET", f"/v1/topics/{TOPIC}/queues/{queue_id}/messages?{query}")
            yield from page["messages"]
            offset, end = page["next_offset"], page["max_offset"]

    def transactions(self, states: str = "") -> Iterator[dict[str, Any]]:
        """The service's own list of the transactions, all of them or those in these states."""
        first = f"/v1/transactions?page_size={_PAGE}" + (f"&state={states}" if states else "")
        page = self._ask("GET", first)
        yield from page["items"]
        while "next_page_token" in page:
            page = self._ask("GET", f"{first}&page_token={page['next_page_token']}")
            yield from page["items"]

    # ----------------------------------------------------------------------------------------------
    # helpers

    def _ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Any:
        """Repeat until an answer comes.

        Raises Refused, and ServiceGone when none comes for a minute.
        """
        give_up = time.monotonic() + _GIVE_UP_SECONDS
        while True:
            try:
                answer = self._client.request(method, path, json=body, headers=headers)
            except httpx.TransportError as error:
                # killed before, while or after it did what it was asked to, or not up again yet
                failure = repr(error)
            else:
                if answer.is_success:
                    return answer.json()
                problem = answer.json()
                failure = f"{answer.status_code} {problem['code']}: {problem['detail']}"
                if not problem["retryable"]:
                    raise Refused(f"{method} {path}: {failure}")
            if time.monotonic() > give_up:
                raise ServiceGone(
                    f"{method} {path}: no answer for {_GIVE_UP_SECONDS:.0f} s, at last {failure}"
                )
            time.sleep(_PAUSE_SECONDS)
