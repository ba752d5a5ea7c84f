"""The service as this example uses it: its names, when it checks, and a client that does not give
up.

Each request may be sent again without harm, so the client repeats it until it gets a response: the
service is killed several times and started again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from escrowmq_client import CheckInput, Client, Retry

TOPIC = "departures"
PRODUCER_GROUP = "airport"
QUEUES = 4

# Short, because the demo is: the service asks about a transaction when it is two seconds old, then
# every second.
CHECK = CheckInput(first_after_ms=2_000, interval_ms=1_000, max_answers=100)
CHECK_WAIT_MS = 1_000
_RETRY = Retry(total_ms=60_000, first_ms=50, longest_ms=200)  # much longer than a restart takes
_TIMEOUT_MS = 30_000


@contextmanager
def connected(url: str) -> Iterator[Client]:
    """A client with connections of its own: each process and each thread has one."""
    # trust_env: no proxy of the environment stands between us and loopback.
    with httpx.Client(trust_env=False) as http:
        yield Client(url, retry=_RETRY, timeout_ms=_TIMEOUT_MS, http=http)
