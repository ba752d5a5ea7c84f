"""The life of the service: opens the store and the registry, starts the components in order, stops
them in reverse, and reports whether all is well.

The engine is named here, where its parts are made (`assembly.py`), and by its component.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from enum import Enum
from functools import partial
from shlex import quote

import msgspec
import structlog
from sqlalchemy.exc import DatabaseError

from app.components.assembly import Base, components_of, names_of, services_of, time_travel
from app.components.component import Component, Gauge
from app.components.local_store import LocalStoreComponent
from app.disk.data_folder import CannotBeMade, make_data_folder
from app.disk.spare_space import SpareSpace
from app.fencing.leading import Leading
from app.life import exit_codes
from app.life.machine import Machine
from app.names.registrar import Deposed
from app.observability.loop_watch import LoopWatch
from app.observability.metrics import Metrics
from app.observability.open_files import count_open, open_limit
from app.problems import Refusal
from app.registry import known_registry
from app.registry.database import Database
from app.registry.vault import CannotOpen
from app.replicas.folder import NoteDamaged, read_note, read_promise
from app.replicas.listener import CannotServeReplicas
from app.replicas.options import WhenMissing
from app.services import Services
from app.settings import ConfigurationError, Settings
from app.store_moves.work_folder import unfinished_in
from app.testing.controls import Controls
from app.word_sets import Role
from scheduler.loops import Loops
from storage.clock import Clock, SystemClock
from storage.errors import (
    CorruptRecord,
    DirectoryInUse,
    FlushFailed,
    LaterRegistry,
    LogOfDLedger,
    RegistryUnavailable,
    StorageError,
    StorageFull,
    StoreClosed,
    StoreRecovering,
    UnreadableConfig,
    UnusableRegistry,
)
from storage.files.unreadable import UnreadableLog
from storage.files.vfs import OsVfs, is_out_of_files
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.repair.repair_report import replacing
from storage.store_status import RecoveryReport, StartStep

log = structlog.get_logger()


# so that it may go on in another role: what fails later, at its end, is then the reason why not
_ORDERLY = (0, exit_codes.DEPOSED)


class Phase(Enum):
    STARTING = "starting"
    READY = "ready"
    WITHOUT_REGISTRY = "without_registry"
    STOPPING = "stopping"
    FAILED = "failed"


_CAPITAL = re.compile(r"(?<!^)([A-Z])")

# asked for with each request: a name of the enumeration is looked up by a function
_READY = Phase.READY
_NOT_READY = {
    Phase.STARTING: "recovering",
    Phase.WITHOUT_REGISTRY: "registry_unavailable",
    Phase.STOPPING: "shutting_down",
    Phase.FAILED: "storage_failed",
}

_OTHER_REGISTRY = (
    "the registry is not the one that this store was used with: it is new, empty or of another "
    "store. Put the right one back "
    "and start again; or start with --accept-registry: topics come back with defaults, groups, "
    "schedules and secrets do not"
)


class ServiceLifecycle:
    """One service, from its settings to its end."""

    role: Role = "primary"

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        machine: Machine,
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
        self._machine = machine
        self.leading = machine.node.promising = Leading(lambda: self._store)
        self._stack = AsyncExitStack()
        self._opening: asyncio.Task[None] | None = None
        self._services: Services | None = None
        self._store: LocalMessageStore | None = None
        self._database: Database | None = None
        self._components: list[Component] = []  # those that have started
        self._start_ms: Counter[str] = Counter()  # how long they took, by step
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

    def get_reading(self) -> Services:
        return self.get_services()

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
            self._services.long_polls.end_all()
        for component in reversed(self._components):
            try:
                component.begin_stop()
            except Exception as error:  # noqa: BLE001 - reported, and the others stop
                self._note_stop_failed(error)

    async def close(self) -> None:
        """Finish what was taken, keep what is derived, release everything. Idempotent.

        An error of a part keeps no other from its end; the exit code says that there was one.
        """
        self.begin_stop()
        if self._opening is not None:
            await asyncio.wait({self._opening})
            self._opening = None
        await self._stack.aclose()
        await asyncio.to_thread(self._watch.stop)
        log.info("stopped", exit_code=self.exit_code)

    def _at_end(self, stop: Callable[[], Awaitable[object]]) -> None:
        """Have `stop` called at the end, before what is here by now is stopped, which it is
        whatever `stop` raises.
        """

        async def stop_or_note() -> None:
            try:
                await stop()
            except Exception as error:  # noqa: BLE001 - reported, and the others stop
                self._note_stop_failed(error)

        self._stack.push_async_callback(stop_or_note)

    def _note_stop_failed(self, error: Exception) -> None:
        if isinstance(error, (StoreClosed, FlushFailed)):
            log.warning("stopped_without_store", error=str(error))  # which says why it has ended
            return
        exit_code = _exit_code_of_end(error)
        is_bug = exit_code == exit_codes.BUG
        log.error("stop_failed", error=str(error), exc_info=error if is_bug else None)
        if self.exit_code in _ORDERLY:  # the store may have reported it already
            self._fail(exit_code, error)

    def get_readiness(self) -> dict[str, str]:
        """Readiness checks, each "ok".

        Raises Refusal: the failed check, and the progress of a start.
        """
        context = {"phase": self.phase.value}
        if self.phase is Phase.STARTING:
            walked, to_walk = self.progress
            context |= {"walked_bytes": str(walked), "bytes_to_walk": str(to_walk)}
        if self.phase is not Phase.READY:
            raise Refusal(_NOT_READY[self.phase], self._why_not_ready(), context=context)
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
            **self._copies_check(),
            **checks,
        }

    def _why_not_ready(self) -> str | None:
        if self.phase is Phase.WITHOUT_REGISTRY:
            return _OTHER_REGISTRY
        if self.phase is Phase.STARTING and self._store is not None and self._store.unsafe_bytes:
            copies = self.settings.replica.copies
            return (
                f"the last {self._store.unsafe_bytes} bytes of the log are not known to be on "
                f"{copies} machines: it waits until replicas that follow have them. Where none "
                + (
                    "do, it goes on alone in a while"
                    if self.settings.replica.when_missing is WhenMissing.DEGRADE
                    else "will, start it with ESCROWMQ_REPLICA__COPIES=1"
                )
            )
        return None

    def refuse_role(self, role: Role) -> None:
        if role != self.role:
            raise Refusal("not_replica")

    def _store_check(self) -> str:
        if self._store is not None and not self._store.disk_usage().is_writable:
            return "new messages are refused: the disk is full"
        if self._store is not None and self._store.lacks_copies:
            return "new messages are refused: too few replicas are connected"
        return _well_or_not(self._loops.failing("store"))

    def _copies_check(self) -> dict[str, str]:
        if self.settings.replica.when_missing is WhenMissing.REFUSE:
            return {}
        is_alone = self._services is not None and self._services.missing_replicas.is_alone
        return {"copies": "messages may be on this machine alone" if is_alone else "ok"}

    def _scrub_check(self) -> str:
        """Say whether the old log is damaged, or what was derived from it.

        Damage does not make the service unready: every other message is served.
        """
        findings = [] if self._store is None else self._store.scrub_status().findings
        derived = sum(finding.is_derived for finding in findings)
        places = {
            "the old log is": len(findings) - derived,
            "queue and index files are": derived,
        }
        damage = [f"{what} damaged in {count} places" for what, count in places.items() if count]
        return f"{'; '.join(damage)}, see GET /v1/admin/store" if damage else "ok"

    async def _open_or_fail(self) -> None:
        try:
            await self._open()
        except FlushFailed as error:
            if self.phase is not Phase.STOPPING:  # it waits for no replicas then
                self._fail(exit_codes.STORAGE_FAILED, error)
        except Exception as error:
            exit_code = _exit_code_of_start(error)
            if exit_code == exit_codes.BUG:
                log.exception("start_failed")
            elif exit_code == exit_codes.NO_REGISTRY:
                # of the driver: SQLAlchemy's own adds the statement and an address of its docs
                cause = getattr(error.__cause__, "orig", error.__cause__)
                log.warning("registry_unavailable", error=str(cause or error))
            self._fail(exit_code, error)

    async def _open(self) -> None:
        settings = self.settings
        for folder in (settings.data_dir, settings.store_dir):
            if reason := unfinished_in(folder):
                raise ConfigurationError(reason)
        _refuse_store(settings)
        _refuse_replica(settings)
        make_data_folder(settings.data_dir)
        spare = SpareSpace(settings.data_dir)
        await asyncio.to_thread(spare.release_if_needed)
        self._at_end(partial(asyncio.to_thread, spare.keep))
        identifiers = Identifiers(self._clock, SystemRandom())
        store = await self._open_store(identifiers)
        database = await self._open_database()
        if database is None:
            return
        base = Base(
            settings=settings,
            clock=self._clock,
            identifiers=identifiers,
            store=store,
            database=database,
            metrics=self._metrics,
            loops=self._loops,
            connections=self._machine.connections,
            controls=self._controls,
        )
        services = self._services = services_of(base)
        names = names_of(
            base,
            services,
            self._machine.node.table,
            is_ready=lambda: self.phase is Phase.READY,
            on_deposed=partial(self._fail, exit_codes.DEPOSED),
        )
        for component in (names, *components_of(base, services)):
            await self._start(component)
            if self.phase is not Phase.STARTING:
                return  # it ends
        for component in self._components:
            for loop in component.loops():
                self._loops.add(loop)
        self._loops.start()
        self._at_end(self._loops.stop)
        if self._controls is not None:
            self._controls.set_up(time_travel(self._controls.clock, services))
        await asyncio.to_thread(spare.keep)
        await store.note_ready([StartStep(step, ms) for step, ms in self._start_ms.items()])
        if self.phase is Phase.STARTING:
            self.on_loaded()
            self.phase = Phase.READY
            for component in self._components:
                component.note_ready()
            log.info("ready")

    async def _start(self, component: Component) -> None:
        begun_ms = self._clock.monotonic_ms()
        await component.start()
        self._start_ms[_step_of(component)] += self._clock.monotonic_ms() - begun_ms
        self._components.append(component)
        self._at_end(component.stop)

    async def _open_store(self, identifiers: Identifiers) -> LocalMessageStore:
        settings = self.settings
        store = self._store = await LocalMessageStore.open(
            settings.store_dir,
            settings.local,
            OsVfs(),
            self._clock if self._controls is None else self._controls.engine_clock,
            identifiers,
            copies=settings.replica.copies,
            progress=self._note_progress,
            on_failure=self._on_store_failure,
        )
        await self._start(LocalStoreComponent(store, settings.local))
        log.info("store_open", **_in_short(store.recovery))
        return store

    async def _open_database(self) -> Database | None:
        """Open the registry's database; None where it is not the one of this store."""
        settings = self.settings
        database = Database(settings.registry_url)
        self._at_end(database.aclose)
        await database.open()
        if not settings.accept_registry and known_registry.is_another(
            settings.store_dir, database.identity
        ):
            log.critical("registry_is_another", reason=_OTHER_REGISTRY)
            if self.phase is Phase.STARTING:
                self.phase = Phase.WITHOUT_REGISTRY
            return None
        known_registry.remember(settings.store_dir, database.identity)
        self._database = database
        return database

    def _note_progress(self, walked: int, to_walk: int) -> None:
        self.progress = (walked, to_walk)

    def _on_store_failure(self, error: Exception) -> None:
        self._fail(_exit_code_of_end(error), error)

    def _fail(self, exit_code: int, error: Exception) -> None:
        self.phase = Phase.FAILED
        if self.exit_code in _ORDERLY:
            self.exit_code = exit_code
        has_repair = exit_code == exit_codes.DATA_DAMAGED or isinstance(error, UnreadableLog)
        helps = {"repair": self._repair_of(error)} if has_repair else {}
        log.critical("service_failed", exit_code=exit_code, error=str(error), **helps)
        self.on_fatal()

    def _repair_of(self, error: Exception) -> str:
        """The command that helps a start that is refused because of this damage."""
        if isinstance(error, DatabaseError):
            return "restore the registry from a copy"
        if isinstance(error, LogOfDLedger):
            return "none: let a broker serve this store, and use another data directory"
        if isinstance(error, UnreadableConfig):
            return "restore the file from a copy, or remove it and its .bak"
        if remedy := getattr(error, "remedy", ""):
            return str(remedy)
        command = f"escrowmq store repair {quote(str(self.settings.store_dir.resolve()))}"
        if isinstance(error, UnreadableLog):
            return (
                "start again: the disk may have failed for a moment. Where it fails there again, "
                f"restore the file from a copy, or: {command} {replacing(error)}"
            )
        option = getattr(error, "repair", "")
        if not option and isinstance(error, CorruptRecord):
            # met when a table was read from the log
            option = f"--blank-unit {error.physical_offset}"
        return f"{command} {option}".strip()

    def _gauges(self) -> Iterator[Gauge]:
        open_files = count_open()
        if open_files is not None:
            yield Gauge(
                "escrowmq_open_files", "Files and sockets that the process has open", open_files
            )
        yield Gauge(
            "escrowmq_open_files_limit", "Files and sockets that it may have open", open_limit()
        )
        yield Gauge(
            "escrowmq_connections_open",
            "Connections of clients, those of probes among them",
            len(self._machine.connections),
        )
        yield Gauge(
            "escrowmq_connections_limit",
            "Connections that may ask for anything",
            self._machine.connections.limit,
        )
        if self._services is not None:
            for component in self._components:
                yield from component.gauges()


def _exit_code_of_start(error: Exception) -> int:
    """The exit code for what made the start fail."""
    match error:
        case DirectoryInUse():
            return exit_codes.DIRECTORY_IN_USE
        case Deposed():
            return exit_codes.DEPOSED
        case LaterRegistry() | UnusableRegistry():
            return exit_codes.CONFIGURATION
        case RegistryUnavailable():
            return exit_codes.NO_REGISTRY
        case StorageFull():
            return exit_codes.STORAGE_FAILED
        case StorageError() | DatabaseError():
            return exit_codes.DATA_DAMAGED
        case ConfigurationError() | CannotBeMade() | CannotOpen() | CannotServeReplicas():
            return exit_codes.CONFIGURATION
        case PermissionError() | NotADirectoryError() | IsADirectoryError() | FileExistsError():
            return exit_codes.CONFIGURATION
        case OSError() if is_out_of_files(error):
            return exit_codes.CONFIGURATION
        case OSError():
            return exit_codes.STORAGE_FAILED
    return exit_codes.BUG


def _exit_code_of_end(error: Exception) -> int:
    """The exit code for what ended the store, or could not be stopped."""
    is_of_store = isinstance(error, (OSError, StorageError))
    return exit_codes.STORAGE_FAILED if is_of_store else exit_codes.BUG


def _step_of(component: Component) -> str:
    """The name of the step in which the component starts: that of its class, in lower case."""
    name = type(component).__name__.removesuffix("Component")
    return "others" if name == "Callback" else _CAPITAL.sub(r"_\1", name).lower()


def _in_short(report: RecoveryReport) -> dict[str, object]:
    """The numbers of a report, for the log."""
    fields = msgspec.structs.asdict(report)
    return {name: value for name, value in fields.items() if not isinstance(value, tuple)}


def _well_or_not(failing: list[str]) -> str:
    return f"the last run of {', '.join(failing)} failed, the log says why" if failing else "ok"


def _refuse_replica(settings: Settings) -> None:
    """Raise ConfigurationError where the data directory follows another service, or has a file in
    the place of the promise that a node makes.
    """
    try:
        note = read_note(settings.data_dir)
        if settings.replica.nodes:
            read_promise(settings.data_dir)
    except NoteDamaged as error:
        raise ConfigurationError(str(error)) from None
    if note is not None:
        raise ConfigurationError(
            f"{settings.data_dir} is a replica of {note.primary or 'a service'}: when that is gone "
            f"for good, `escrowmq replica promote --data-dir {quote(str(settings.data_dir))}` "
            "makes it a service's"
        )


def _refuse_store(settings: Settings) -> None:
    """Raise ConfigurationError where the data directory is a store itself."""
    if (settings.data_dir / "commitlog").is_dir() and not settings.store_dir.exists():
        raise ConfigurationError(
            f"{settings.data_dir} is a store, of a broker or of a service: the data directory is "
            "the folder that has a store in its folder `store`. A broker's store becomes one with "
            "`escrowmq store import`"
        )
