"""A transaction of the service around a transaction of the caller's database.

    with client.transaction("shop", business_key=order_id, markers=markers) as tx:
        tx.add("orders", json=order, key=order_id)
        with engine.begin() as db:
            tx.mark(db)
            db.execute(...)

    program                        database                    service
       │ add: nothing is sent         │                           │
       ├─ mark: begin ────────────────┼──────────────────────────▶│ prepared; consumers see nothing
       ├─ mark: INSERT 'commit' ─────▶│                           │
       ├─ the work ──────────────────▶│                           │
       ├─ COMMIT ────────────────────▶│ marker and work, or none  │
       ├─ leaving: SELECT marker ────▶│ 'commit'                  │
       ├─ commit ─────────────────────┼──────────────────────────▶│ committed; consumers see all

If the program dies, at any point, the service checks the transaction later, and the answer is what
the database has: `commit` with the marker; without it the fence is inserted, and the answer is
`rollback`. The race is between the fence and a producer that is slow. The primary key decides it:

    the marker was inserted first      the fence waits for the COMMIT, and reads 'commit'
    the fence was inserted first       `tx.mark` raises FencedError, and the work is rolled back

An error out of the COMMIT itself leaves open whether the database has the marker. Leaving the block
asks the database, as a check would; if it cannot be reached, nothing is sent, and the check
decides.
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4

from msgspec import UNSET

from escrowmq_client.call import Call
from escrowmq_client.decisions import ACTIONS, Action, Event, State, event_of_end
from escrowmq_client.errors import (
    ClientClosed,
    EscrowMQError,
    InvalidAnswer,
    ProblemError,
    Unreachable,
    error_of,
)
from escrowmq_client.markers.base import FencedError, IsOpen, Markers, Outcome, OutcomeUnknown
from escrowmq_client.methods import AsyncCaller, Caller
from escrowmq_client.models.messages import MessageInput
from escrowmq_client.models.problem import Problem
from escrowmq_client.models.transactions import (
    CheckInput,
    Decision,
    Transaction,
    TransactionMessage,
    TransactionMessageInput,
)
from escrowmq_client.operations.transactions import (
    begin_transaction,
    commit_transaction,
    get_transaction,
    rollback_transaction,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)
_UNDECIDED = ("prepared", "held")
# The Idempotency-Key of a begin is its id, and is forgotten sooner than the transaction.
_TAKEN = ("idempotency_key_reused", "transaction_exists")


class CommitPending(EscrowMQError):
    """A transaction whose decision the service does not have yet; the check will bring it.

    Not a failure of the local transaction: that is committed, or its outcome is not known.
    """

    def __init__(self, transaction_id: str, reason: str) -> None:
        super().__init__(f"{transaction_id} waits for its check: {reason}")
        self.transaction_id = transaction_id
        self.reason = reason


class NotCommitted(EscrowMQError):
    """A block that ended without an error, although its marker was not committed.

    The local transaction was rolled back, or the savepoint in which the marker was inserted. The
    transaction was rolled back at the service, too. `tx.rollback()` says that it is meant.
    """


class NotMarked(EscrowMQError):
    """A block that ended without an error and without `tx.mark`, although it has `markers`.

    Nothing is published. The local transaction may be committed, without its messages.
    `tx.rollback()` says that nothing is to be published.
    """


class TransactionMisuse(EscrowMQError):
    """A call that does not fit the state of the transaction."""


@dataclass(frozen=True)
class _Local:
    """A step in the caller's database, for either kind of program."""

    blocking: Callable[[], Any]
    awaitable: Callable[[], Awaitable[Any]]


_Steps = Generator[Call[Any] | _Local, Any, T]


class _Scope:
    """A transaction and its block, as steps that both kinds of client execute."""

    def __init__(
        self,
        producer_group: str,
        transaction_id: str | None,
        business_key: str | None,
        check: CheckInput | None,
        markers: Markers | None,
    ) -> None:
        self.transaction_id = transaction_id or f"txn-{uuid4().hex}"
        self.begun: Transaction | None = None
        self.decision: Outcome | None = None
        self._published: list[TransactionMessage] = []
        self._group = producer_group
        self._business_key = business_key
        self._check = check
        self._markers = markers
        self._needs_mark = markers is not None
        self._messages: list[TransactionMessageInput] = []
        self._state = State.NEW
        self._is_open: IsOpen = lambda: False

    @property
    def messages(self) -> list[TransactionMessage]:
        """The messages as the service has them, with their ids, once it has them.

        After the commit each has its queue offset, or its schedule if it is delayed.
        """
        return self._published or ([] if self.begun is None else self.begun.messages)

    def add(
        self,
        topic: str,
        *,
        json: Any = UNSET,
        payload: str | bytes | None = None,
        key: str | None = None,
        keys: list[str] | None = None,
        tag: str | None = None,
        ordering_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        content_type: str | None = None,
        delay_ms: int | None = None,
        deliver_at: datetime | None = None,
    ) -> None:
        """Add a message, which is sent with the begin. The fields are those of `client.send`."""
        self._action(Event.ADD)
        message = MessageInput(
            json=json,
            payload=payload,
            key=key,
            keys=keys,
            tag=tag,
            ordering_key=ordering_key,
            properties=None if properties is None else dict(properties),
            content_type=content_type,
            delay_ms=delay_ms,
            deliver_at=deliver_at,
        )
        self._messages.append(TransactionMessageInput(topic, message))

    # ----------------------------------------------------------------------------------------------
    # events

    def _action(self, event: Event) -> Action:
        """Look up the action for an event now. Raises TransactionMisuse."""
        state = State.OPEN if self._state is State.MARKED and self._is_open() else self._state
        action = ACTIONS[state, event]
        if action is Action.REFUSE:
            raise TransactionMisuse(
                f"{self.transaction_id}: {event.name.lower()} is not possible when the transaction "
                f"is {state.name.lower()}"
            )
        if action is Action.REFUSE_OPEN:
            self._state = State.OVER
            raise TransactionMisuse(
                f"{self.transaction_id}: the local transaction is still open, so nothing was sent; "
                "its block has to end inside the one of client.transaction"
            )
        return action

    def _begin(self) -> _Steps[None]:
        self._action(Event.BEGIN)
        yield from self._begin_now()

    def _mark(self, db: Any) -> _Steps[None]:
        action, markers = self._action(Event.MARK), self._markers_of(db)
        if action is Action.BEGIN_AND_MARK:
            yield from self._begin_now()
        self._state = State.MARKED  # from here on, also if the insert fails
        self._is_open = yield _Local(
            lambda: markers.mark(db, self.transaction_id),
            lambda: markers.mark_async(db, self.transaction_id),
        )

    def _roll_back(self, reason: str | None) -> _Steps[None]:
        action = self._action(Event.ROLLBACK)
        if action is Action.SETTLE and (yield from self._outcome()) == "commit":
            raise TransactionMisuse(f"{self.transaction_id}: the local transaction is committed")
        if action in (Action.SETTLE, Action.ROLL_BACK):
            yield from self._send_rollback(reason)
        self._state = State.OVER

    def _end(self, error: BaseException | None) -> _Steps[None]:
        """Decide as the block ends. An error of the block itself is not replaced."""
        event = event_of_end(error)
        action = self._action(event)
        try:
            if event is Event.LEAVE and self._lacks_mark:
                yield from self._refuse_unmarked()
            elif action is Action.PUBLISH and self._messages:
                yield from self._begin_now()
                yield from self._send_commit()
            elif action is Action.COMMIT:
                yield from self._send_commit()
            elif action is Action.SETTLE:
                yield from self._settle(event, error)
        except Exception as failure:
            if error is None:
                raise
            _log.warning("%s: %s", self.transaction_id, failure)
        finally:
            self._state = State.OVER

    # ----------------------------------------------------------------------------------------------
    # steps

    def _begin_now(self) -> _Steps[None]:
        """A begin with the same id and messages may be repeated, also by another process.

        Unanswered, it is not rolled back: the id may be that of a transaction that is under way.
        """
        if not self._messages:
            raise TransactionMisuse(f"{self.transaction_id} has no message: add them first")
        self._state = State.OVER
        try:
            self.begun = yield begin_transaction(
                self._group,
                self._messages,
                transaction_id=self.transaction_id,
                business_key=self._business_key,
                check=self._check,
                idempotency_key=self.transaction_id,
            )
        except ProblemError as error:
            if error.code not in _TAKEN:
                raise
            raise (yield from self._taken(error)) from error
        if self.begun.state not in _UNDECIDED:
            outcome: Outcome = "commit" if self.begun.state == "committed" else "rollback"
            raise FencedError(self.transaction_id, outcome, self.begun.resolved_by)
        self._state = State.BEGUN

    def _taken(self, error: ProblemError) -> _Steps[EscrowMQError]:
        """Return the error of an id that a transaction with another content has."""
        try:
            existing: Transaction = yield get_transaction(self.transaction_id)
        except EscrowMQError:
            return error
        return error_of(
            Problem(
                type="/problems/transaction_exists",
                title="Transaction exists",
                status=409,
                code="transaction_exists",
                detail=f"The transaction {self.transaction_id} exists with other messages or "
                f"fields, and is {existing.state}. Repeat it with the same, or use another id.",
                retryable=False,
                context={"transaction_id": self.transaction_id, "state": existing.state},
            )
        )

    def _settle(self, event: Event, error: BaseException | None) -> _Steps[None]:
        outcome = yield from self._outcome()
        if isinstance(error, FencedError):
            error.outcome = outcome
        if outcome == "commit":
            yield from self._send_commit()
            return
        decision = yield from self._send_rollback(None)
        # A first rollback leaves open who inserted the fence.
        if isinstance(error, FencedError) and decision is not None and decision.replayed:
            error.resolved_by = decision.resolved_by
        if event is Event.LEAVE:
            raise NotCommitted(
                f"{self.transaction_id}: the marker was not committed: the local transaction was "
                "rolled back, or the savepoint in which tx.mark was called; nothing was published. "
                "If that is meant, call tx.rollback() before the block ends"
            )

    @property
    def _lacks_mark(self) -> bool:
        is_unmarked = self._state in (State.NEW, State.BEGUN)
        return self._needs_mark and is_unmarked and bool(self._messages)

    def _refuse_unmarked(self) -> _Steps[None]:
        if self._state is State.BEGUN:
            with suppress(CommitPending):  # the check brings it
                yield from self._settle(Event.FAIL, None)
        raise NotMarked(
            f"{self.transaction_id}: the block has markers and ended without tx.mark, so its "
            "messages are not published; its local transaction may be committed. If nothing is to "
            "be published, call tx.rollback() before the block ends"
        )

    def _outcome(self) -> _Steps[Outcome]:
        assert self._markers is not None
        markers = self._markers
        try:
            outcome: Outcome = yield _Local(
                lambda: markers.outcome(self.transaction_id),
                lambda: markers.outcome_async(self.transaction_id),
            )
        except OutcomeUnknown as error:
            raise CommitPending(self.transaction_id, error.reason) from error
        return outcome

    def _send_commit(self) -> _Steps[None]:
        try:
            decision: Decision = yield commit_transaction(self.transaction_id)
        except EscrowMQError as error:
            if not _is_undelivered(error):
                raise
            raise CommitPending(self.transaction_id, str(error)) from error
        self.decision = "commit"
        self._published = decision.messages

    def _send_rollback(self, reason: str | None) -> _Steps[Decision | None]:
        """Roll back at the service; None if it cannot be reached, so that the check brings it."""
        try:
            decision: Decision = yield rollback_transaction(self.transaction_id, reason=reason)
        except EscrowMQError as error:
            if not _is_undelivered(error):
                raise
            _log.info("%s waits for its check to be rolled back: %s", self.transaction_id, error)
            return None
        self.decision = "rollback"
        return decision

    def _markers_of(self, db: Any) -> Markers:
        if self._markers is None:
            if not type(db).__module__.startswith("sqlalchemy."):
                raise TransactionMisuse(
                    f"for {type(db).__module__}, give client.transaction its `markers`"
                )
            from escrowmq_client.markers.for_sqlalchemy import SqlAlchemyMarkers

            self._markers = SqlAlchemyMarkers.of(db)
        return self._markers


def _is_undelivered(error: EscrowMQError) -> bool:
    """Whether the service may not have the decision yet; otherwise it was refused for good."""
    if isinstance(error, ProblemError):
        return error.retryable or error.status == 429 or error.status >= 500
    return isinstance(error, Unreachable | InvalidAnswer | ClientClosed)


class TransactionScope(_Scope):
    """A transaction in a `with` block; see the module for what happens when."""

    def __init__(self, client: Caller, *given: Any) -> None:
        super().__init__(*given)
        self._client = client

    def begin(self) -> None:
        """Begin at the service now, before the local transaction; `mark` may follow in it.

        Or a marker of your own: if the block fails then, nothing is sent, and your checker decides.
        Raises Conflict (transaction_exists) if the id has other messages.
        """
        self._run(self._begin())

    def mark(self, db: Any) -> None:
        """Begin at the service unless it has begun, then insert the marker with `db`.

        `db`: a Connection or Session of SQLAlchemy, or what the `markers` of the transaction take.
        Raises FencedError if the id is spent: let it end the local transaction.
        """
        self._run(self._mark(db))

    def rollback(self, reason: str | None = None) -> None:
        """Roll back at the service; the local transaction is rolled back already, or has no work.

        Raises TransactionMisuse if the local transaction is committed.
        """
        self._run(self._roll_back(reason))

    def __enter__(self) -> "TransactionScope":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._end(error))

    def _run(self, steps: _Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    done = step.blocking() if isinstance(step, _Local) else self._client.call(step)
                except Exception as error:  # noqa: BLE001, PERF203  the steps judge it
                    step = steps.throw(error)
                else:
                    step = steps.send(done)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class AsyncTransactionScope(_Scope):
    """A transaction in an `async with` block; see the module for what happens when."""

    def __init__(self, client: AsyncCaller, *given: Any) -> None:
        super().__init__(*given)
        self._client = client

    async def begin(self) -> None:
        """Begin at the service now, before the local transaction; `mark` may follow in it.

        Or a marker of your own: if the block fails then, nothing is sent, and your checker decides.
        Raises Conflict (transaction_exists) if the id has other messages.
        """
        await self._run(self._begin())

    async def mark(self, db: Any) -> None:
        """Begin at the service unless it has begun, then insert the marker with `db`.

        `db`: an AsyncConnection or AsyncSession of SQLAlchemy, or what the `markers` of the
        transaction take. Raises FencedError if the id is spent: let it end the local transaction.
        """
        await self._run(self._mark(db))

    async def rollback(self, reason: str | None = None) -> None:
        """Roll back at the service; the local transaction is rolled back already, or has no work.

        Raises TransactionMisuse if the local transaction is committed.
        """
        await self._run(self._roll_back(reason))

    async def __aenter__(self) -> "AsyncTransactionScope":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._run(self._end(error))

    async def _run(self, steps: _Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, _Local):
                        done = await step.awaitable()
                    else:
                        done = await self._client.call(step)
                except Exception as error:  # noqa: BLE001, PERF203  the steps judge it
                    step = steps.throw(error)
                else:
                    step = steps.send(done)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
