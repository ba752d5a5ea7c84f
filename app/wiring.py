"""Puts the service together: opens in order, closes in reverse.

The only file that names an engine.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from enum import Enum
from importlib.metadata import version
from importlib.util import find_spec

import structlog
from sqlalchemy.exc import DatabaseError

from app import exit_codes
from app.body_thread import BodyThread
from app.connections import Connections
from app.loop_watch import LoopWatch
from app.loops import ACTING, add_loops, keep_tables
from app.observability import Metrics
from app.open_files import count_open, open_limit
from app.parking import Parking
from app.problems import Refusal
from app.registry import known_registry
from app.registry.audit_reports import AuditReportRows
from app.registry.consumer_groups import ConsumerGroups
from app.registry.cron_schedules import CronSchedules
from app.registry.database import Database
from app.registry.producer_groups import ProducerGroups
from app.registry.topics import Topics
from app.registry.vault import CannotOpen, Vault
from app.reports.service import AuditReports
from app.schedules import occurrence
from app.sent_keys import SentKeys
from app.services import Services
from app.settings import Settings, effective
from app.spare_space import SpareSpace
from app.store_tasks import StoreTasks
from app.testing.clock import VirtualClock
from app.testing.controls import Controls
from app.testing.faults import SlowAnswers
from app.testing.travel import TimeTravel
from app.topic_deletions import TopicDeletions
from app.webhooks.probe import CheckProbe
from app.webhooks.service import Webhooks
from delivery.leases.message_states import State
from delivery.requests.service import Requests
from delivery.service import Delivery
from scheduler.cron_service import CronService
from scheduler.loops import Loops
from scheduler.schedule_service import ScheduleService
from scheduler.scheduled_message import put_off
from storage.clock import Clock, SystemClock
from storage.errors import (
    CorruptRecord,
    DirectoryInUse,
    RegistryUnavailable,
    StorageError,
    StorageFull,
    StoreClosed,
    StoreRecovering,
)
from storage.files.vfs import OsVfs, is_out_of_files
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import FlushPolicy
from storage.message import Durability
from txn.check_sender import CheckSender
from txn.coordinator import TransactionCoordinator
from txn.producer import ProducerClient

log = structlog.get_logger()


class Phase(Enum):
    STARTING = "starting"
    READY = "ready"
    WITHOUT_REGISTRY = "without_registry"
    STOPPING = "stopping"
    FAILED = "failed"


# asked for with each request: a name of the enumeration is looked up by a function
_READY = Phase.READY
_NOT_READY = {
    Phase.STARTING: "recovering",
    Phase.WITHOUT_REGISTRY: "registry_unavailable",
    Phase.STOPPING: "shutting_down",
    Phase.FAILED: "storage_failed",
}


_REGISTRY_MS = 1_000
_OTHER_REGISTRY = (
    "the registry is not the one that this store was used with: it is new, empty or of another "
    "store. Put the right one back "
    "and start again; or start with --accept-registry: topics come back with defaults, groups, "
    "schedules and secrets do not"
)


class Wiring:
    """One service, from its settings to its end."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        clock: Clock | None = None,
        controls: Controls | None = None,
    ) -> None:
        """`controls`: for tests; its clock is the service's, unless there is another one."""
        self.settings = settings
        self.phase = Phase.STARTING
        self.progress = (0, 0)  # bytes of log walked, bytes to walk
        self.exit_code = 0
        self.on_fatal: Callable[[], None] = lambda: None  # the process should end, with `exit_code`
        # state is loaded, requests are not served yet
        self.on_loaded: Callable[[], None] = lambda: None
        self._metrics = metrics
        self._controls = controls
        self._clock = clock or (SystemClock() if controls is None else controls.clock)
        self.connections = Connections(settings.http.connection_limit)
        self._stack = AsyncExitStack()
        self._opening: asyncio.Task[None] | None = None
        self._services: Services | None = None
        self._store: LocalMessageStore | None = None
        self._database: Database | None = None
        self._sender: CheckSender | None = None
        self._loops = Loops(self._clock, random=SystemRandom().random)
        self._watch = LoopWatch(
            on_standstill=metrics.loop_standstills.inc, on_end=metrics.note_standstill
        )
        metrics.watch(self._gauges)
        metrics.watch_loops(self._loops.reports)
        metrics.watch_syncs(lambda: None if self._store is None else self._store.status().syncs)

    def get_services(self) -> Services:
        """Raises StoreRecovering before the service is ready, StoreClosed once it stops."""
        if self.phase is _READY and self._services is not None:
            return self._services
        if self.phase is Phase.STARTING:
            raise StoreRecovering
        if self.phase is Phase.WITHOUT_REGISTRY:
            raise RegistryUnavailable(_OTHER_REGISTRY)
        raise StoreClosed

    def start(self) -> None:
        """Begin to open, in the background: probes are answered meanwhile."""
        self._watch.start()
        self._opening = asyncio.create_task(self._open_or_fail(), name="opening")

    def begin_stop(self) -> None:
        """Take nothing new, and answer every long poll now."""
        if self.phase in (Phase.STARTING, Phase.READY, Phase.WITHOUT_REGISTRY):
            self.phase = Phase.STOPPING
            log.info("stopping")
        if self._services is not None:
            self._services.stopping.set()
            self._services.transactions.stop()
            self._services.delivery.stop()
            self._services.requests.stop()
        if self._sender is not None:
            self._sender.begin_stop()
        if self._store is not None:
            self._store.stop_waiting()

    async def close(self) -> None:
        """Finish what was taken, keep what is derived, release everything. Idempotent."""
        self.begin_stop()
        if self._opening is not None:
            await asyncio.wait({self._opening})
            self._opening = None
        await self._stack.aclose()
        await asyncio.to_thread(self._watch.stop)
        log.info("stopped", exit_code=self.exit_code)

    def get_readiness(self) -> dict[str, str]:
        """Readiness checks, each "ok".

        Raises Refusal: the failed check, and the progress of a start.
        """
        context = {"phase": self.phase.value}
        if self.phase is Phase.STARTING:
            walked, to_walk = self.progress
            context |= {"walked_bytes": str(walked), "bytes_to_walk": str(to_walk)}
        if self.phase is not Phase.READY:
            detail = _OTHER_REGISTRY if self.phase is Phase.WITHOUT_REGISTRY else None
            raise Refusal(_NOT_READY[self.phase], detail, context=context)
        if self._database is not None and self._database.lost is not None:
            raise Refusal("registry_unavailable", self._database.lost, context=context)
        checks = {
            # the queues are derived in the turn in which a message becomes visible
            "dispatch_lag": "ok",
            **{
                check: _well_or_not(self._loops.failing(check))
                for check in ("scheduler", "requests", "leases", "checker")
            },
        }
        failing = {name: what for name, what in checks.items() if what != "ok"}
        if failing:
            raise Refusal(
                "recovering", f"not ready: {', '.join(failing)}", context=context | failing
            )
        # A full disk is reported and blocks few requests: decisions, acks and reads go on.
        return {
            "store_writable": self._store_check(),
            "store_intact": self._scrub_check(),
            **checks,
        }

    def _store_check(self) -> str:
        if self._store is not None and not self._store.disk_usage().is_writable:
            return "new messages are refused: the disk is full"
        return _well_or_not(self._loops.failing("store"))

    def _scrub_check(self) -> str:
        """Say whether the old log is damaged.

        Damage does not make the service unready: every other message is served.
        """
        count = 0 if self._store is None else len(self._store.scrub_status().findings)
        return (
            f"the old log is damaged in {count} places, see GET /v1/admin/store" if count else "ok"
        )

    async def _open_or_fail(self) -> None:
        try:
            await self._open()
        except DirectoryInUse as error:
            self._fail(exit_codes.DIRECTORY_IN_USE, error)
        except StorageFull as error:
            self._fail(exit_codes.STORAGE_FAILED, error)
        except RegistryUnavailable as error:
            log.warning("registry_unavailable", error=str(error.__cause__))
            self._fail(exit_codes.NO_REGISTRY, error)
        except (StorageError, DatabaseError) as error:
            self._fail(exit_codes.DATA_DAMAGED, error)
        except (PermissionError, NotADirectoryError, FileExistsError, CannotOpen) as error:
            self._fail(exit_codes.CONFIGURATION, error)
        except OSError as error:
            self._fail(
                exit_codes.CONFIGURATION if is_out_of_files(error) else exit_codes.STORAGE_FAILED,
                error,
            )
        except Exception as error:
            log.exception("start_failed")
            self._fail(exit_codes.BUG, error)

    async def _open(self) -> None:
        settings, clock, stack = self.settings, self._clock, self._stack
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        spare = SpareSpace(settings.data_dir)
        await asyncio.to_thread(spare.release_if_needed)
        stack.push_async_callback(asyncio.to_thread, spare.keep)
        identifiers = Identifiers(clock, SystemRandom())
        store = self._store = await LocalMessageStore.open(
            settings.store_dir,
            settings.local,
            OsVfs(),
            clock if self._controls is None else self._controls.engine_clock,
            identifiers,
            progress=self._note_progress,
            on_failure=self._on_store_failure,
        )
        stack.push_async_callback(store.aclose)
        log.info("store_open", **store.recovery._asdict())
        database = Database(settings.registry_url)
        stack.push_async_callback(database.aclose)
        await database.open()
        if not settings.accept_registry and known_registry.is_another(
            settings.store_dir, database.identity
        ):
            log.critical("registry_is_another", reason=_OTHER_REGISTRY)
            if self.phase is Phase.STARTING:
                self.phase = Phase.WITHOUT_REGISTRY
            return
        known_registry.remember(settings.store_dir, database.identity)
        self._database = database
        limits = settings.limit
        topics = Topics(
            database,
            store,
            clock,
            limits,
            creates_on_use=settings.dev,
            retention_ms=settings.local.retention_ms,
        )
        producer_groups = ProducerGroups(
            database, clock, Vault(settings.webhook.encryption_keys), limits
        )
        consumer_groups = ConsumerGroups(database, clock, limits)
        stack.push_async_callback(topics.schema_process.aclose)
        transactions = TransactionCoordinator(
            store,
            clock,
            identifiers,
            settings.txn,
            put_off=put_off,
            on_decided=self._metrics.note_decided,
        )
        schedules = ScheduleService(
            store, clock, settings.schedule, on_delivered=self._metrics.note_delivered
        )
        cron = CronService(
            store,
            CronSchedules(database),
            clock,
            settings.schedule,
            build=occurrence.builder(topics, identifiers, clock),
            on_settled=self._metrics.note_cron,
        )
        sent_keys = SentKeys(store, clock)
        requests = Requests(
            store,
            clock,
            identifiers,
            settings.request,
            ack_beside=lambda *asked: delivery.ack_beside(*asked),
        )
        delivery = Delivery(
            store,
            clock,
            SystemRandom(),
            new_task_id=lambda: identifiers.new("task"),
            rules_of=consumer_groups.rules_of,
            cancelled_requests=requests,
            options=settings.delivery,
        )
        await topics.open()
        await producer_groups.open()
        await consumer_groups.open()
        for group in consumer_groups.all():
            await delivery.open_group(group.name)
        replayed = await transactions.start()
        await sent_keys.start()
        followed = await schedules.start()
        await cron.start()
        granted = await delivery.start()
        await requests.start()
        log.info("transactions_open", undecided=transactions.table.open_count, replayed=replayed)
        log.info("schedules_open", scheduled=schedules.counts.waiting, replayed=followed)
        log.info("cron_open", schedules=cron.table.open_count)
        log.info("groups_open", leased=delivery.count(State.LEASED), replayed=granted)
        log.info("requests_open", pending=requests.table.pending_count)
        stack.push_async_callback(delivery.save_snapshot)
        stack.push_async_callback(delivery.drain)
        stack.push_async_callback(requests.save_snapshot)
        stack.push_async_callback(requests.drain)
        stack.push_async_callback(schedules.save_snapshot)
        stack.push_async_callback(schedules.drain)
        stack.push_async_callback(cron.save_snapshot)
        receiver_clock = clock if self._controls is None else SystemClock()
        webhooks = Webhooks(
            settings.webhook,
            producer_groups,
            clock,
            self._metrics,
            version=version("escrowmq"),
            receiver_clock=receiver_clock,
        )
        client: ProducerClient = webhooks
        if self._controls is not None:
            client = SlowAnswers(
                webhooks, self._controls.faults, self._controls.clock, webhooks.timeout_ms
            )
        sender = self._sender = CheckSender(
            transactions, client, clock, random=SystemRandom().random
        )
        stack.push_async_callback(webhooks.aclose)
        stack.push_async_callback(keep_tables, transactions, sent_keys)
        stack.push_async_callback(transactions.drain)
        stack.push_async_callback(sender.stop)
        stack.push_async_callback(sent_keys.drain)
        reports = AuditReports(
            AuditReportRows(database),
            clock,
            settings.audit,
            program=settings.audit.program or _own_program(),
            data_dir=settings.data_dir.resolve(),
            has_plots=find_spec("matplotlib") is not None,
        )
        await reports.open()
        stack.push_async_callback(reports.stop)
        topic_deletions = TopicDeletions(
            topics=topics,
            store=store,
            transactions=transactions,
            schedules=schedules,
            cron=cron,
            consumer_groups=consumer_groups,
            delivery=delivery,
        )
        await topic_deletions.finish_all()
        stack.push_async_callback(topic_deletions.drain)
        body_thread = BodyThread()
        stack.callback(body_thread.close)
        store_tasks = StoreTasks(clock, lambda: identifiers.new("task"))
        stack.push_async_callback(store_tasks.stop)
        self._services = Services(
            store=store,
            pressure=store.pressure,
            default_durability=(
                Durability.SYNCED
                if settings.local.flush is FlushPolicy.BEFORE_ACK
                else Durability.BUFFERED
            ),
            topics=topics,
            topic_deletions=topic_deletions,
            producer_groups=producer_groups,
            consumer_groups=consumer_groups,
            transactions=transactions,
            schedules=schedules,
            cron=cron,
            delivery=delivery,
            requests=requests,
            sent_keys=sent_keys,
            webhooks=webhooks,
            sender=sender,
            reports=reports,
            store_tasks=store_tasks,
            tester=CheckProbe(sender, webhooks, clock, identifiers),
            clock=clock,
            identifiers=identifiers,
            metrics=self._metrics,
            loops=self._loops,
            effective_settings=effective(settings),
            has_keys=bool(settings.api_keys),
            connections=self.connections,
            parking=Parking(
                clock, most=settings.http.waiting_limit, on_changed=self._metrics.long_polls.set
            ),
            max_line_bytes=settings.http.max_body_bytes,
            max_body_values=settings.http.max_body_values,
            body_thread=body_thread,
        )

        add_loops(self._services, settings)
        self._loops.add(
            "registry", self._watch_registry, interval_ms=_REGISTRY_MS, check="registry"
        )
        self._loops.start()
        stack.push_async_callback(self._loops.stop)
        if self._controls is not None:
            self._controls.set_up(self._time_travel(self._controls.clock, self._services))
        await asyncio.to_thread(spare.keep)
        if self.phase is Phase.STARTING:
            self.on_loaded()
            self.phase = Phase.READY
            log.info("ready")

    def _time_travel(self, clock: VirtualClock, services: Services) -> TimeTravel:
        acting = [ticker for ticker in self._loops.tickers if ticker.name in ACTING]
        return TimeTravel(
            clock,
            services.sender,
            acting=acting,
            keeping=[ticker for ticker in self._loops.tickers if ticker not in acting],
            wall_moments=[
                services.transactions.table.next_due_ms, services.schedules.next_due_ms,
                services.cron.table.next_due_ms
            ],
            monotonic_moments=[
                services.transactions.next_return_ms, services.sender.next_due_ms,
                services.delivery.next_due_ms
            ],
        )  # fmt: skip

    async def _watch_registry(self) -> None:
        """Note whether the registry is still the one that was opened."""
        database = self._database
        assert database is not None
        before = database.lost
        try:
            lost = await database.check()
        except RegistryUnavailable:
            return  # a server that cannot be reached: changes are refused, and what exists goes on
        if lost is not None and before is None:
            log.critical("registry_lost", reason=lost)
        elif lost is None and before is not None:
            log.warning("registry_back")

    def _note_progress(self, walked: int, to_walk: int) -> None:
        self.progress = (walked, to_walk)

    def _on_store_failure(self, error: Exception) -> None:
        self._fail(exit_codes.STORAGE_FAILED, error)

    def _fail(self, exit_code: int, error: Exception) -> None:
        self.phase = Phase.FAILED
        self.exit_code = self.exit_code or exit_code
        helps = {"repair": self._repair_of(error)} if exit_code == exit_codes.DATA_DAMAGED else {}
        log.critical("service_failed", exit_code=exit_code, error=str(error), **helps)
        self.on_fatal()

    def _repair_of(self, error: Exception) -> str:
        """The command that helps a start that is refused because of this damage."""
        if isinstance(error, DatabaseError):
            return "restore the registry from a copy"
        command = f"escrowmq store repair {self.settings.store_dir.resolve()}"
        option = getattr(error, "repair", "")
        if not option and isinstance(error, CorruptRecord):
            # met when a table was read from the log
            option = f"--blank-unit {error.physical_offset}"
        return f"{command} {option}".strip()

    def _gauges(self) -> Iterator[tuple[str, str, float]]:
        open_files = count_open()
        if open_files is not None:
            yield "escrowmq_open_files", "Files and sockets that the process has open", open_files
        yield "escrowmq_open_files_limit", "Files and sockets that it may have open", open_limit()
        yield (
            "escrowmq_connections_open",
            "Connections of clients, those of probes among them",
            len(self.connections),
        )
        yield (
            "escrowmq_connections_limit",
            "Connections that may ask for anything",
            self.connections.limit,
        )
        if self._store is None or self._services is None:
            return
        status = self._store.status()
        yield "escrowmq_log_written_offset", "End of the log", status.written_end
        yield "escrowmq_log_synced_offset", "The log is on disk up to here", status.durable_end
        yield "escrowmq_log_visible_offset", "Consumers see the log up to here", status.visible_end
        yield (
            "escrowmq_log_mapped_bytes",
            "Bytes of log that are mapped into memory",
            status.mapped_bytes,
        )
        usage = self._store.disk_usage()
        yield (
            "escrowmq_log_first_offset",
            "Where the log begins: what lies before has expired",
            status.first_offset,
        )
        yield "escrowmq_disk_used_ratio", "Share of the disk that is used", usage.used_ratio
        yield (
            "escrowmq_segments_dropped",
            "Segments dropped since the start",
            usage.segments_dropped,
        )
        yield (
            "escrowmq_segments_dropped_unexpired",
            "Segments dropped before they had expired, since the start",
            usage.segments_dropped_unexpired,
        )
        yield "escrowmq_disk_writable", "1 while new messages are taken", usage.is_writable
        yield (
            "escrowmq_log_queued_bytes",
            "Bytes that wait to be written or synced",
            status.queued_bytes,
        )
        yield (
            "escrowmq_log_replay_backlog_bytes",
            "Log that a start would replay",
            status.replay_backlog_bytes,
        )
        yield (
            "escrowmq_queue_entries_rebuilt_total",
            "Entries of consume queue files that contradicted the log and were made again from it",
            status.rebuilt_entries,
        )
        yield (
            "escrowmq_index_files_rebuilt_total",
            "Files of the key index that were damaged and made again from the log",
            status.rebuilt_index_files,
        )
        yield (
            "escrowmq_log_last_sync_seconds",
            "How long the last sync took",
            status.last_flush_ms / 1000,
        )
        scrub = self._store.scrub_status()
        yield (
            "escrowmq_scrub_offset",
            "The scrub has verified the old log up to here in its newest pass",
            scrub.position,
        )
        yield (
            "escrowmq_scrub_findings",
            "Places of the old log that are damaged",
            len(scrub.findings),
        )
        ended_ms = scrub.last_ended_at_ms or 0
        yield (
            "escrowmq_scrub_last_pass_timestamp_seconds",
            "When the last whole pass ended; 0 before the first",
            ended_ms / 1000,
        )
        table = self._services.transactions.table
        oldest = table.oldest_open
        age_ms = 0 if oldest is None else self._clock.wall_ms() - oldest.prepared_at_ms
        yield (
            "escrowmq_transactions_open",
            "Undecided transactions, held ones among them",
            table.open_count,
        )
        yield "escrowmq_transactions_held", "Transactions that wait for a person", table.held_count
        yield (
            "escrowmq_transactions_oldest_open_seconds",
            "Age of the oldest undecided one",
            max(0, age_ms) / 1000,
        )
        schedules = self._services.schedules
        delivery = self._services.delivery
        yield (
            "escrowmq_requests_pending",
            "Requests that wait for their replies",
            self._services.requests.table.pending_count,
        )
        yield (
            "escrowmq_messages_leased",
            "Messages leased to consumers",
            delivery.count(State.LEASED),
        )
        yield (
            "escrowmq_messages_skipped",
            "Messages that groups passed over by their rules",
            delivery.count_skipped(),
        )
        yield (
            "escrowmq_messages_damaged",
            "Messages that groups could not be given: damaged",
            delivery.count_damaged(),
        )
        left_out = self._services.cron.count_left_out() + schedules.count_left_out()
        left_out += self._services.transactions.count_left_out()
        yield (
            "escrowmq_journal_events_left_out",
            "Damaged events that the last start left out",
            left_out,
        )
        yield "escrowmq_schedules_scheduled", "Delayed messages that wait", schedules.counts.waiting
        yield (
            "escrowmq_schedules_set_aside",
            "Delayed messages that could not be delivered",
            schedules.counts.never,
        )
        cron = self._services.cron.table
        yield "escrowmq_cron_schedules", "Cron schedules that are not cancelled", cron.open_count
        yield (
            "escrowmq_cron_set_aside",
            "Cron schedules whose times cannot be worked out",
            cron.set_aside_count,
        )
        late_ms = self._clock.wall_ms() - (schedules.next_due_ms() or self._clock.wall_ms())
        yield (
            "escrowmq_schedules_overdue_seconds",
            "How late the one is that was due first",
            max(0, late_ms) / 1000,
        )
        yield (
            "escrowmq_schedules_backlog",
            "Long overdue ones, delivered at a bounded rate",
            schedules.backlog_count,
        )


def _well_or_not(failing: list[str]) -> str:
    return f"the last run of {', '.join(failing)} failed, the log says why" if failing else "ok"


def _own_program() -> tuple[str, ...]:
    """Command that makes audit reports: this installation, if Spark is installed."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return ()
    return (sys.executable, "-P", "-m", "cli")
