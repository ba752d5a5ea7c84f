"""Publishes the rows of an outbox table: for programs that write to their own database alone.

    outbox = Outbox(client, engine, outbox_table("outbox"), group="shop")
    with engine.begin() as db:                     # in the program
        outbox.add(db, "orders", tx_id=order_id, json=order)
        db.execute(...)
    outbox.run()                                   # in a process for it; several may run

The rows of one local transaction have one `tx_id` and become one transaction of the service: all of
them are published at once, in the order of their `id`. Its id is `ob-` and the `tx_id`, so what was
begun or committed before a restart is found again and not published twice:

    stopped before the begin          the rows are found again
    behind the begin                  the begin is repeated by its id, then committed
    behind the commit                 the begin returns the committed transaction
    behind its answer                 the rows are gone, or stamped

The transaction of that id may be another's, if two outboxes of a service use a `tx_id` both. Then
the rows stay, and are refused.

The service knows a transaction for as long as its log holds it, 72 hours by default. Rows whose
transaction was committed longer ago, and that a restart finds again, are published again.
"""

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa
from msgspec import UNSET
from sqlalchemy.dialects.mysql import VARCHAR
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from escrowmq_client.encoding import for_json
from escrowmq_client.errors import ClientClosed, EscrowMQError, ProblemError
from escrowmq_client.models.messages import MessageInput
from escrowmq_client.models.transactions import TransactionMessageInput
from escrowmq_client.publisher import Publisher

if TYPE_CHECKING:
    from escrowmq_client.client import Client

_log = logging.getLogger(__name__)
_MOST_AT_ONCE = 100  # transactions whose rows are locked together
_PAUSE_MS = 1_000  # after an error of the service or of the database
_FIRST_PAUSE_S = 1.0  # of a transaction that the service has refused; doubled each time
_LONGEST_PAUSE_S = 300.0
_LOCKING = ("postgresql", "mysql", "mariadb")
# its usual collations hold "A" and "a" for the same
_ID_OF_MYSQL = VARCHAR(100, charset="ascii", collation="ascii_bin")


def outbox_table(
    name: str, metadata: sa.MetaData | None = None, *, stamped: bool = False
) -> sa.Table:
    """The table of an outbox, which `metadata.create_all` or a migration creates.

    With `stamped` its rows stay, with the time at which they were published.
    """
    table = sa.Table(
        name,
        metadata if metadata is not None else sa.MetaData(),
        # SQLite numbers the rows of an INTEGER only
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("tx_id", _on_mysql(sa.String(100), _ID_OF_MYSQL), nullable=False, index=True),
        sa.Column("topic", sa.String(127), nullable=False),
        # the fields of a message as in the REST contract: {"json": ..., "key": ...}
        sa.Column("message", _on_mysql(sa.Text(), sa.Text(16 << 20)), nullable=False),
    )
    if stamped:
        table.append_column(sa.Column("published_at_ms", sa.BigInteger(), index=True))
    return table


@dataclass(frozen=True)
class _Refusal:
    """When a transaction that the service has refused is tried again."""

    pause_s: float
    again_at_s: float


class Outbox:
    """Moves rows of an outbox table to the service.

    `table`: that of `outbox_table`, or one with the same columns. One process publishes in the
    order of the rows. Several share the transactions (SKIP LOCKED), and then the order is kept
    within each; on SQLite they do the same work twice, without effect.
    """

    def __init__(
        self,
        client: "Client",
        engine: Engine,
        table: sa.Table,
        *,
        group: str,
        poll_ms: int = 500,
    ) -> None:
        self.refused_count = 0
        """How often the service has refused a transaction for good; its rows stay."""
        self._engine = engine
        self._table = table
        self._publisher = Publisher(client, group)
        self._poll_ms = poll_ms
        self._is_locking = engine.dialect.name in _LOCKING
        self._is_stamped = "published_at_ms" in table.c
        self._is_stopping = threading.Event()
        self._refusals: dict[str, _Refusal] = {}

    def add(
        self,
        db: Any,
        topic: str,
        *,
        tx_id: str,
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
        """Write a message into the local transaction of `db`, a Connection or Session.

        All messages of a local transaction, at most 1,000, have its `tx_id`, which no other one
        uses, in this outbox or another one of the service: letters, digits, `_`, `-` and `.`, at
        most 100. The other fields are those of `client.send`.
        """
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
        text = msgspec.json.encode(for_json(message)).decode()
        db.execute(self._table.insert().values(tx_id=tx_id, topic=topic, message=text))

    def run(self) -> None:
        """Publish rows until `stop` is called, in this thread. Raises ClientClosed."""
        while not self._is_stopping.is_set():
            wait_ms = self._poll_ms
            try:
                if self.run_once():
                    wait_ms = 0
            except ClientClosed:
                raise
            except (EscrowMQError, SQLAlchemyError) as error:
                _log.warning("outbox %s: %s", self._table.name, error)
                wait_ms = _PAUSE_MS
            self._is_stopping.wait(wait_ms / 1_000)

    def stop(self) -> None:
        """Make `run` return after the transactions that it has; from any thread or signal
        handler.
        """
        self._is_stopping.set()

    def run_once(self) -> int:
        """Publish what is in the table now, up to 100 local transactions; their number.

        One that the service has refused is tried again later, at most every five minutes, and those
        behind it are published meanwhile. Raises EscrowMQError if the service does not answer; what
        was published is taken off first.
        """
        published = 0
        failure: EscrowMQError | None = None
        with self._engine.connect() as db:
            if self._is_locking:
                # READ COMMITTED: on MySQL other levels lock the gap into which programs insert
                db = db.execution_options(isolation_level="READ COMMITTED")
            # The locks last until all is done; SQLite's would stop the programs meanwhile.
            whole = db.begin() if self._is_locking else nullcontext()
            with whole:
                last_id, is_last = None, False
                while not (published or failure or is_last):
                    with self._step(db):
                        found = db.execute(self._first_rows(last_id)).fetchall()
                    is_last = len(found) < _MOST_AT_ONCE or self._is_stopping.is_set()
                    for row in found:
                        last_id = row.id
                        if not self._is_due(row.tx_id):
                            continue
                        try:
                            published += self._move(db, row.tx_id)
                        except EscrowMQError as error:
                            failure = error
                            break
        if failure is not None:
            raise failure
        return published

    def _step(self, db: Connection) -> AbstractContextManager[Any]:
        return nullcontext() if self._is_locking else db.begin()

    def _is_due(self, tx_id: str) -> bool:
        """Whether it was not refused, or long enough ago."""
        refusal = self._refusals.get(tx_id)
        return refusal is None or refusal.again_at_s <= time.monotonic()

    def _refused(self, tx_id: str) -> None:
        before = self._refusals.get(tx_id)
        pause_s = _FIRST_PAUSE_S if before is None else min(2 * before.pause_s, _LONGEST_PAUSE_S)
        self._refusals[tx_id] = _Refusal(pause_s, time.monotonic() + pause_s)
        self.refused_count += 1

    def _first_rows(self, last_id: int | None) -> Any:
        """The first row of each local transaction, behind that id: the lock on it stands for all of
        them.
        """
        rows, others = self._table, self._table.alias()
        earlier = sa.select(others.c.id).where(
            others.c.tx_id == rows.c.tx_id, others.c.id < rows.c.id, self._is_waiting(others)
        )
        first = (
            sa.select(rows.c.id, rows.c.tx_id)
            .where(
                ~earlier.exists(),
                self._is_waiting(rows),
                sa.true() if last_id is None else rows.c.id > last_id,
            )
            .order_by(rows.c.id)
            .limit(_MOST_AT_ONCE)
        )
        return first.with_for_update(skip_locked=True) if self._is_locking else first

    def _is_waiting(self, rows: Any) -> Any:
        return rows.c.published_at_ms.is_(None) if self._is_stamped else sa.true()

    def _move(self, db: Connection, tx_id: str) -> bool:
        table = self._table
        mine = (table.c.tx_id == tx_id) & self._is_waiting(table)
        with self._step(db):
            rows = db.execute(
                sa.select(table.c.id, table.c.topic, table.c.message)
                .where(mine)
                .order_by(table.c.id)
            ).fetchall()
        if not rows:
            self._refusals.pop(tx_id, None)
            return False  # another process was faster
        try:
            messages = [TransactionMessageInput(row.topic, _message(row.message)) for row in rows]
            self._publisher.publish(tx_id, messages)
        except (ProblemError, ValueError, TypeError, RecursionError) as error:
            if isinstance(error, ProblemError) and (error.retryable or error.status >= 500):
                raise
            self._refused(tx_id)
            _log.error("outbox %s: %s was refused: %s", table.name, tx_id, error)
            return False
        self._refusals.pop(tx_id, None)
        published = mine & (table.c.id <= rows[-1].id)  # not what was added meanwhile, by mistake
        with self._step(db):
            if self._is_stamped:
                db.execute(table.update().where(published).values(published_at_ms=_now_ms()))
            else:
                db.execute(table.delete().where(published))
        return True


def _on_mysql(usual: Any, other: Any) -> Any:
    return usual.with_variant(other, "mysql").with_variant(other, "mariadb")


def _message(text: str) -> MessageInput:
    """Raises ValueError or TypeError if the text is no message, RecursionError if it is nested too
    deep.
    """
    return MessageInput(**msgspec.json.decode(text, type=dict[str, Any]))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
