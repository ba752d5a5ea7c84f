"""Transactions, the idempotency keys of sends, and the sender of checks, as components."""

from collections.abc import Iterator

import structlog

from app.components.component import Component, Gauge, events_left_out
from app.components.loop_kinds import parked_items, patient_loop, saving_loop
from app.idempotency.keys import IdempotencyKeys
from scheduler.loops import Loop
from storage.clock import Clock
from txn.check_sender import CheckSender
from txn.coordinator import TransactionCoordinator
from txn.options import TransactionOptions

log = structlog.get_logger()


class TransactionsComponent(Component):
    """The table of transactions, with that of idempotency keys, which one loop saves."""

    def __init__(
        self,
        transactions: TransactionCoordinator,
        idempotency: IdempotencyKeys,
        clock: Clock,
        options: TransactionOptions,
    ) -> None:
        self._transactions = transactions
        self._idempotency = idempotency
        self._clock = clock
        self._options = options

    async def start(self) -> None:
        replayed = await self._transactions.start()
        await self._idempotency.start()
        undecided = self._transactions.table.open_count
        log.info("transactions_open", undecided=undecided, replayed=replayed)

    def begin_stop(self) -> None:
        self._transactions.stop()

    async def stop(self) -> None:
        await self._transactions.drain()
        await self._save_tables()

    def loops(self) -> Iterator[Loop]:
        yield patient_loop(
            "checkback",
            lambda: self._transactions.run_once(self._clock.wall_ms()),
            interval_ms=self._options.sweep_interval_ms,
            check="checker",
            parked=lambda: parked_items(self._transactions.parked()),
        )
        yield saving_loop(
            "snapshots",
            self._save_tables,
            self._clock,
            interval_ms=self._options.snapshot_interval_ms,
            check="scheduler",
        )

    def gauges(self) -> Iterator[Gauge]:
        table = self._transactions.table
        oldest, now_ms = table.oldest_open, self._clock.wall_ms()
        age_ms = 0 if oldest is None else now_ms - oldest.prepared_at_ms
        yield Gauge(
            "escrowmq_transactions_open",
            "Undecided transactions, held ones among them",
            table.open_count,
        )
        yield Gauge(
            "escrowmq_transactions_held", "Transactions that wait for a person", table.held_count
        )
        yield Gauge(
            "escrowmq_transactions_oldest_open_seconds",
            "Age of the oldest undecided one",
            max(0, age_ms) / 1000,
        )
        yield events_left_out(self._transactions.count_left_out())

    async def _save_tables(self) -> int:
        """Save both tables, so that a start replays only later events; how many bytes."""
        return await self._transactions.save_snapshot() + await self._idempotency.save_snapshot()


class CheckSenderComponent(Component):
    """The sender of checks to the callbacks of producers."""

    def __init__(self, sender: CheckSender, options: TransactionOptions) -> None:
        self._sender = sender
        self._options = options

    def begin_stop(self) -> None:
        self._sender.begin_stop()

    async def stop(self) -> None:
        await self._sender.stop()

    def loops(self) -> Iterator[Loop]:
        yield Loop("webhooks", self._sender.run_once, self._options.sweep_interval_ms, "checker")
