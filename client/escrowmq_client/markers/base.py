"""The marker table of a producer: which of its local transactions committed.

A producer inserts the marker ('commit') in the same local transaction as its work, so the marker is
committed if, and only if, the work is. The outcome is read from it. If there is no marker, the
producer may still be at work, so the fence ('rollback') is inserted, and the local transaction of a
producer that was only slow fails on the primary key. The first insert decides, for good:

    producer                     database                              check
       │ begin                      │                                    │
       ├─ INSERT 'commit' ─────────▶│ (not committed yet)                │
       │                            │◀── SELECT: nothing ────────────────┤
       │                            │◀── INSERT 'rollback': waits ───────┤
       ├─ COMMIT ──────────────────▶│                                    │
       │                            ├── a marker exists: no insert ─────▶│
       │                            ├── SELECT: 'commit' ───────────────▶│ answers commit

With the COMMIT after the limit for the wait, the check answers `unknown` and comes again; with the
INSERT 'rollback' first, the producer gets FencedError and its work is rolled back.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from typing import Any, Literal, Protocol

from escrowmq_client.errors import EscrowMQError
from escrowmq_client.markers.drivers import Failure, failure_of
from escrowmq_client.markers.statements import LONGEST_ID, Statement, Statements

Outcome = Literal["commit", "rollback"]
IsOpen = Callable[[], bool]

DEFAULT_LOCK_TIMEOUT_MS = 2_000
# A check can come this long after its transaction began: a day without an answer
# (unreachable_limit_ms), and the service itself away for another.
CHECK_HORIZON_MS = 2 * 86_400_000
IN_LOCAL_TRANSACTION = "the only connection is in the local transaction itself"
_TRIES = 5
_PRUNED_AT_ONCE = 1_000
_BEFORE = "by a check or by an earlier call with this id that failed"
_ROLLED_BACK_BY: dict[str | None, str] = {
    "producer": "by its producer, in an earlier call with this id that failed",
    "check": "by a check, which found no committed marker",
    "operator": "by an operator",
    "policy": "by the policy of its check, as its outcome stayed unknown",
}


class FencedError(EscrowMQError):
    """The id of the transaction is spent: it was committed or rolled back before this call.

    This call has done nothing: roll the local transaction back. When the block of the transaction
    has ended, `outcome` is "rollback" (the work may be tried again, under another id), "commit"
    (an earlier call with this id has done the work; do not repeat it), or None (the database could
    not tell). `resolved_by`: who decided: producer, check, operator or policy; None if unknown.
    """

    def __init__(
        self,
        transaction_id: str,
        outcome: Outcome | None = None,
        resolved_by: str | None = None,
    ) -> None:
        super().__init__(transaction_id, outcome, resolved_by)
        self.transaction_id = transaction_id
        self.outcome = outcome
        self.resolved_by = resolved_by

    def __str__(self) -> str:
        known = f"outcome: {self.outcome or 'not known'}"
        return f"{self.transaction_id} {self._history()} ({known})"

    def _history(self) -> str:
        """Say what became of the id, and what to do."""
        if self.outcome is None:
            return (
                "has a marker already, so it was committed or rolled back before: roll the local "
                "transaction back"
            )
        if self.outcome == "commit":
            if self.resolved_by == "operator":
                return "was committed by an operator: roll the local transaction back"
            return (
                "was committed by an earlier call with this id: its work is done, so do not repeat "
                "it, and roll the local transaction back"
            )
        return (
            f"was rolled back {_ROLLED_BACK_BY.get(self.resolved_by, _BEFORE)}, so its id is "
            "spent: roll the local transaction back, and try again under another id"
        )


class MarkerCommitsAlone(EscrowMQError):
    """The connection is in autocommit, so the marker would be committed before the work."""


class OutcomeUnknown(EscrowMQError):
    """The database could not tell the outcome now: it is locked, or cannot be reached.

    Answer `unknown`; the check comes again.
    """

    def __init__(self, transaction_id: str, reason: str) -> None:
        super().__init__(f"the outcome of {transaction_id} is not known yet: {reason}")
        self.transaction_id = transaction_id
        self.reason = reason


class Asked(Protocol):
    """A check, by poll or by webhook."""

    @property
    def transaction_id(self) -> str: ...


class Local(ABC):
    """A connection for the short transactions of a fence, outside any of the caller's."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Begin; commit at the end, roll back after an error. Reads what is committed, no more.

        Raises RuntimeError if the connection is in a transaction of the caller.
        """

    @abstractmethod
    def run(self, statement: Statement, **values: object) -> list[Any]:
        """Execute a statement; its rows, if it has any."""


class Markers(ABC):
    """The markers in one table. Safe to share between threads."""

    def __init__(self, statements: Statements, lock_timeout_ms: int) -> None:
        self._statements = statements
        self._lock_timeout_ms = lock_timeout_ms

    def mark(self, db: Any, transaction_id: str) -> IsOpen:
        """Insert the marker in the local transaction of the caller, which commits it with its work.

        Raises FencedError if there is a marker already: let the error end the local transaction.
        Raises MarkerCommitsAlone in autocommit. Returns a function: whether this local transaction
        is still open, False if that cannot be seen.
        """
        if not 1 <= len(transaction_id) <= LONGEST_ID:
            raise ValueError(f"the id of a transaction has 1 to {LONGEST_ID} characters")
        try:
            return self._insert(db, self._statements.mark, _row(transaction_id))
        except Exception as error:
            if failure_of(error) is Failure.DUPLICATE:
                raise FencedError(transaction_id) from error
            raise

    def outcome(self, transaction: str | Asked) -> Outcome:
        """The outcome of a local transaction, by its id or by a check of it.

        Insert the fence if there is no marker, so that the answer stays true. Every transaction
        that this opens is ended. Raises OutcomeUnknown.
        """
        transaction_id = transaction if isinstance(transaction, str) else transaction.transaction_id
        try:
            with self._connected() as local:
                return self._decide(local, transaction_id)
        except OutcomeUnknown:
            raise
        except Exception as error:
            raise OutcomeUnknown(transaction_id, reason_of(error)) from error

    async def outcome_async(self, transaction: str | Asked) -> Outcome:
        """The same as `outcome`, without blocking the event loop."""
        return await asyncio.to_thread(self.outcome, transaction)

    async def mark_async(self, db: Any, transaction_id: str) -> IsOpen:
        """The same as `mark`, for a connection of an asynchronous program."""
        return self.mark(db, transaction_id)

    def create_table(self) -> None:
        """Create the table if it does not exist. For migrations there is `ddl`."""
        with self._connected() as local:
            self._create(local)

    async def create_table_async(self) -> None:
        """Create the table if it does not exist, without blocking the event loop."""
        await asyncio.to_thread(self.create_table)

    def prune(self, *, older_than_ms: int, keep: Collection[str] = ()) -> int:
        """Delete markers that are older than this; their number.

        A marker answers checks, so it is needed for as long as a check of its transaction can come;
        without its marker, a committed transaction would be fenced. Hence at least
        CHECK_HORIZON_MS. A longer `unreachable_limit_ms` needs longer, and a held transaction is
        checked again whenever an operator resumes it: `keep` has the ids of those that are
        undecided (`client.list_transactions(state="prepared,held")`).

        A fence is needed until the slowest local transaction has ended.
        """
        if older_than_ms < CHECK_HORIZON_MS:
            raise ValueError(
                f"markers younger than {CHECK_HORIZON_MS} ms are needed: a check may come"
            )
        before_ms, kept, pruned = _now_ms() - older_than_ms, frozenset(keep), 0
        most = _PRUNED_AT_ONCE + len(kept)
        with self._connected() as local:
            while True:
                with local.transaction():
                    found = local.run(self._statements.oldest, before_ms=before_ms, most=most)
                    old = [row[0] for row in found if row[0] not in kept]
                    for transaction_id in old:
                        local.run(self._statements.delete, transaction_id=transaction_id)
                pruned += len(old)
                if len(found) < most:
                    return pruned

    # ----------------------------------------------------------------------------------------------
    # what a style does

    @abstractmethod
    def _insert(self, db: Any, statement: Statement, values: dict[str, object]) -> IsOpen:
        """Execute in the caller's transaction. Raises MarkerCommitsAlone."""

    @abstractmethod
    def _connected(self) -> AbstractContextManager[Local]:
        """A connection of its own, given back at the end."""

    # ----------------------------------------------------------------------------------------------
    # the table, and the fence

    def _create(self, local: Local) -> None:
        for statement in self._statements.create:
            # PostgreSQL: two that create the table at once, one of them may fail
            with suppress_duplicate(), local.transaction():
                local.run(statement)

    def _decide(self, local: Local, transaction_id: str) -> Outcome:
        for tries in count(1):
            try:
                return self._read(local, transaction_id) or self._fence(local, transaction_id)
            except Exception as error:  # noqa: PERF203
                if tries == _TRIES or failure_of(error) is not Failure.REPEAT:
                    raise OutcomeUnknown(transaction_id, reason_of(error)) from error
        raise AssertionError("unreachable")

    def _read(self, local: Local, transaction_id: str) -> Outcome | None:
        """A committed marker stays as it is, so most answers need nothing but this."""
        with local.transaction():
            return _only(local.run(self._statements.read, transaction_id=transaction_id))

    def _fence(self, local: Local, transaction_id: str) -> Outcome:
        with local.transaction(), self._wait_limit(local):
            local.run(self._statements.fence, **_row(transaction_id))
            outcome = _only(local.run(self._statements.read, transaction_id=transaction_id))
        if outcome is None:
            raise LookupError("the marker was deleted meanwhile")
        return outcome

    @contextmanager
    def _wait_limit(self, local: Local) -> Iterator[None]:
        """A lock is waited for this long and no longer."""
        made = self._statements
        before = int(local.run(made.wait_limit)[0][0]) if made.wait_limit else None
        local.run(made.set_wait_limit(made.wait_limit_of(self._lock_timeout_ms)))
        try:
            yield
        finally:
            if before is not None:
                # a connection that is lost needs no limit
                with suppress(Exception):
                    local.run(made.set_wait_limit(before))


@contextmanager
def suppress_duplicate() -> Iterator[None]:
    """Ignore an error that means that the row, or the table, exists already."""
    try:
        yield
    except Exception as error:
        if failure_of(error) is not Failure.DUPLICATE:
            raise


def _row(transaction_id: str) -> dict[str, object]:
    return {"transaction_id": transaction_id, "written_at_ms": _now_ms()}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _only(rows: list[Any]) -> Outcome | None:
    """The first column of the first row."""
    if not rows:
        return None
    found = rows[0][0]
    text = found.decode() if isinstance(found, bytes | bytearray) else str(found)
    assert text in ("commit", "rollback")
    return "commit" if text == "commit" else "rollback"


def reason_of(error: BaseException) -> str:
    """An error in one line: SQLAlchemy adds the statement and a link in lines of their own."""
    try:
        first = str(error).partition("\n")[0]
    except Exception:  # noqa: BLE001  an error of the program's own making
        first = ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
