"""Open checks and their leases: the checks that producers have to answer.

In memory only.

The id of a check names its transaction and its number, so that an answer finds the transaction
after a restart, too. A check whose lease ends without an answer is delivered again with the same
id.
"""

import asyncio
import heapq
from typing import NamedTuple

from storage.clock import Clock
from txn.transaction import Transaction

_PREFIX = "chk"
_NEVER = -1


def check_id(transaction: Transaction) -> str:
    """The id of the transaction's open check."""
    return f"{_PREFIX}_{transaction.checks_answered + 1}_{transaction.transaction_id}"


def parse_check_id(text: str) -> tuple[str, int] | None:
    """(transaction id, number of the check); None if it is not a check id."""
    prefix, _, rest = text.partition("_")
    number, _, transaction_id = rest.partition("_")
    if (
        prefix != _PREFIX
        or not transaction_id
        or not (number.isascii() and number.isdigit())
        or len(number) > 9
    ):
        return None
    return transaction_id, int(number)


class LeasedCheck(NamedTuple):
    check_id: str
    number: int  # of the transaction's checks, from 1
    transaction: Transaction
    lease_expires_at_ms: int


def check_now(transaction: Transaction, now_ms: int) -> LeasedCheck:
    """The open check, or the next one, for a try that an operator requested. Its first answer
    counts.
    """
    return LeasedCheck(check_id(transaction), transaction.checks_answered + 1, transaction, now_ms)


class OpenChecks:
    """The open checks and their leases, on the monotonic clock. Event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._available: dict[str, _Line] = {}  # by group; none is empty
        self._leases: list[tuple[int, str]] = []
        self._leased: dict[str, tuple[int, Transaction]] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        # when the open check was last leased, in wall milliseconds
        self._leased_at_ms: dict[str, int] = {}
        self._failures: dict[str, int] = {}  # tries of the open check that gave no answer

    def groups(self) -> list[str]:
        """The producer groups with an open check that is not leased."""
        self.return_expired()
        return list(self._available)

    def offer(self, transaction: Transaction) -> None:
        """Make the check of a transaction available to its producer group."""
        group = transaction.producer_group
        line = self._available.get(group)
        if line is None:
            line = self._available[group] = _Line()
        line.add(transaction)
        for waiting in self._waiting.pop(group, []):
            if not waiting.done():
                waiting.set_result(None)

    def withdraw(self, transaction: Transaction) -> None:
        """End the check: it was answered, or its transaction is decided or held."""
        self._leased.pop(transaction.transaction_id, None)
        self._leased_at_ms.pop(transaction.transaction_id, None)
        self._failures.pop(transaction.transaction_id, None)
        self._drop_stale()
        available = self._available.get(transaction.producer_group)
        if available is not None:
            available.discard(transaction)
            if not available:
                del self._available[transaction.producer_group]

    def lease(self, group: str, *, max_checks: int, lease_ms: int | None) -> list[LeasedCheck]:
        """Lease available checks, oldest first. `lease_ms`: None: until withdrawn or postponed."""
        self.return_expired()
        checks: list[LeasedCheck] = []
        until_ms = _NEVER if lease_ms is None else self._clock.monotonic_ms() + lease_ms
        now_ms = self._clock.wall_ms()
        expires_at_ms = now_ms + (lease_ms or 0)
        available = self._available.get(group)
        while available and len(checks) < max_checks:
            transaction = available.pop()
            self._leased_at_ms[transaction.transaction_id] = now_ms
            self._lease(transaction, until_ms)
            number = transaction.checks_answered + 1
            checks.append(LeasedCheck(check_id(transaction), number, transaction, expires_at_ms))
        if available is not None and not available:
            del self._available[group]
        return checks

    def is_leased(self, transaction: Transaction) -> bool:
        """Whether the open check is leased and not answered yet."""
        return transaction.transaction_id in self._leased

    def count_failure(self, check: LeasedCheck) -> int:
        """Number of tries of this check without an answer, including this one."""
        transaction_id = check.transaction.transaction_id
        if not self._is_leased(check):
            return 1
        self._failures[transaction_id] = self._failures.get(transaction_id, 0) + 1
        return self._failures[transaction_id]

    def postpone(self, check: LeasedCheck, wait_ms: int) -> None:
        """Offer the check again after this time, unless it was answered or decided meanwhile."""
        if self._is_leased(check):
            self._lease(check.transaction, self._clock.monotonic_ms() + wait_ms)

    def wait_ms(self, transaction: Transaction) -> int | None:
        """Time until the open check can be leased, from 0; None while it is leased without a
        deadline.
        """
        until_ms, _ = self._leased.get(transaction.transaction_id, (0, None))
        return None if until_ms == _NEVER else max(0, until_ms - self._clock.monotonic_ms())

    def leased_at_ms(self, transaction: Transaction) -> int | None:
        """When the open check was last leased, in wall milliseconds; None if it was not since the
        start.
        """
        return self._leased_at_ms.get(transaction.transaction_id)

    def _lease(self, transaction: Transaction, until_ms: int) -> None:
        self._leased[transaction.transaction_id] = (until_ms, transaction)
        if until_ms != _NEVER:
            heapq.heappush(self._leases, (until_ms, transaction.transaction_id))
            self._drop_stale()

    def _drop_stale(self) -> None:
        """Drop ends of leases whose checks were answered: a lease may last for hours, and they must
        not accumulate.
        """
        if len(self._leases) > 2 * len(self._leased) + 64:
            self._leases = [
                (until_ms, id_) for id_, (until_ms, _) in self._leased.items() if until_ms != _NEVER
            ]
            heapq.heapify(self._leases)

    def _is_leased(self, check: LeasedCheck) -> bool:
        return (
            check.transaction.transaction_id in self._leased
            and check_id(check.transaction) == check.check_id
        )

    def return_expired(self) -> int:
        """Offer checks again whose leases have ended; their number."""
        now_ms = self._clock.monotonic_ms()
        count = 0
        while self._leases and self._leases[0][0] <= now_ms:
            until_ms, transaction_id = heapq.heappop(self._leases)
            leased = self._leased.get(transaction_id)
            if leased is not None and leased[0] == until_ms:
                del self._leased[transaction_id]
                self.offer(leased[1])
                count += 1
        return count

    def next_expiry_ms(self) -> int | None:
        """When the next lease ends, on the monotonic clock."""
        return self._leases[0][0] if self._leases else None

    async def wait(self, group: str) -> None:
        """Wait until a check is offered to the group, or the service stops."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiting.setdefault(group, [])
        waiters.append(waiting)
        try:
            await waiting
        finally:
            if waiting in waiters:
                waiters.remove(waiting)
                if not waiters and self._waiting.get(group) is waiters:
                    del self._waiting[group]

    def wake_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            for one in waiters:
                if not one.done():
                    one.set_result(None)


class _Line:
    """Transactions whose checks are not leased, in order.

    Two plain dicts: the garbage collector skips these, while it would walk an OrderedDict of a
    million entries in one turn.
    """

    def __init__(self) -> None:
        self._by_place: dict[int, Transaction] = {}
        self._places: dict[str, int] = {}
        self._first = self._end = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, transaction: Transaction) -> None:
        """Add at the end; an entry that exists keeps its place."""
        place = self._places.setdefault(transaction.transaction_id, self._end)
        self._by_place[place] = transaction
        self._end += 1

    def discard(self, transaction: Transaction) -> None:
        place = self._places.pop(transaction.transaction_id, None)
        if place is not None:
            del self._by_place[place]

    def pop(self) -> Transaction:
        """Remove and return the first entry."""
        while self._first not in self._by_place:
            self._first += 1
        transaction = self._by_place[self._first]
        self.discard(transaction)
        return transaction
