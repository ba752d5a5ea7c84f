"""A replica in the place of the service: it follows, answers probes, and sends clients to the
service that it follows.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter

import structlog
from msgspec import UNSET

from app.components.component import Gauge
from app.components.names import names_gauges
from app.disk.data_folder import CannotBeMade, make_data_folder
from app.disk.spare_space import SpareSpace
from app.life import exit_codes
from app.life.machine import Machine
from app.life.replica_reads import ReplicaReads
from app.names.http_server import servers_of
from app.names.nodes import ReplicaNode, identity_of
from app.names.registrar import Registrar
from app.observability.metrics import Metrics
from app.problems import Refusal
from app.registry.followed_topics import FollowedTopics
from app.replicas.folder import NoteDamaged
from app.replicas.follower import Follower
from app.replicas.greeting import FollowRefused
from app.replicas.primary_choice import KnownPrimary
from app.services import Services
from app.settings import Settings
from app.word_sets import Role
from storage.clock import SystemClock
from storage.errors import DirectoryInUse, FlushFailed, StorageError, StoreClosed
from storage.identifiers import Identifiers, SystemRandom

log = structlog.get_logger()


class ReplicaLife:
    """Follows from its start to its end."""

    role: Role = "replica"

    def __init__(self, settings: Settings, metrics: Metrics, machine: Machine) -> None:
        self.exit_code = 0
        self.on_fatal: Callable[[], None] = lambda: None
        self.on_loaded: Callable[[], None] = lambda: None
        self._data_dir = settings.data_dir
        clock = SystemClock()
        self._follower = Follower(
            self._data_dir,
            settings.replica,
            settings.local,
            clock,
            Identifiers(clock, SystemRandom()),
            find_primary=self._find_primary,
        )
        self._make_reads = partial(
            ReplicaReads,
            clock,
            metrics,
            FollowedTopics(settings.registry_url, clock),
            machine.node.body_thread,
            self._follower,
            not_primary=self._not_primary,
            max_body_values=settings.http.max_body_values,
            most_waiting=settings.http.waiting_limit,
        )
        self._reads: ReplicaReads | None = None
        self._table = machine.node.table
        machine.node.promising = self._follower
        self._group = settings.names.group
        self._registrar = Registrar(
            ReplicaNode(
                identity_of(
                    settings.names, settings.replica, host=settings.host, port=settings.port
                ),
                self._follower,
            ),
            self._table,
            servers_of(settings.names, settings.api_keys),
            settings.names,
            on_deposed=lambda _: None,  # a replica is not the service
        )
        self._following: asyncio.Task[None] | None = None
        self._registering: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        metrics.watch(self._gauges)

    def start(self) -> None:
        self._following = asyncio.create_task(self._follow(), name="following")
        self._registering = asyncio.create_task(self._registrar.start(), name="names")
        self._reads = self._make_reads()
        self._watching = asyncio.create_task(self._reads.watch_topics(), name="topics")

    async def wait_open(self) -> None:
        """Return once its log is open, or it has ended instead."""
        assert self._following is not None, "it has started"
        begun = asyncio.create_task(self._follower.wait_begun())
        await asyncio.wait({begun, self._following}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()

    def begin_stop(self) -> None:
        if self._reads is not None:
            self._reads.begin_stop()
        self._follower.stop()

    async def close(self) -> None:
        self.begin_stop()
        if self._registering is not None:
            await asyncio.wait({self._registering})
            self._registering = None
            try:
                await self._registrar.stop()
            except Exception:
                log.exception("stop_failed")
                self._end(exit_codes.BUG)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
            self._watching = None
        if self._following is not None:
            await asyncio.wait({self._following})
            self._following = None
            follower = self._follower
            log.info("stopped", end=follower.end, behind_bytes=follower.behind_bytes)

    def get_services(self) -> Services:
        """Raises Refusal: the service has them."""
        raise self._not_primary()

    def get_reading(self) -> ReplicaReads:
        """Raises StoreClosed, Refusal: there is nothing yet to read."""
        reads = self._reads
        if reads is None or not reads.are_possible:
            raise self._not_primary()
        if reads.is_stopping:
            raise StoreClosed
        return reads

    def get_readiness(self) -> Mapping[str, str]:
        follower = self._follower
        if not follower.is_connected:
            service = follower.primary or "its service"
            detail = f"the replica is not connected to {service}: its log has the reason"
            raise Refusal("recovering", detail)
        if not follower.has_caught_up:
            behind = str(follower.behind_bytes)
            context = {"behind_bytes": behind}
            raise Refusal(
                "recovering", f"the replica is {behind} bytes of log behind", context=context
            )
        return {"follows": "ok"}

    def refuse_role(self, role: Role) -> None:
        if role != self.role:
            raise self._not_primary()

    def _not_primary(self) -> Refusal:
        primary = self._table.primary_of(self._group)
        url = self._follower.primary_url
        if primary is not None and primary.registration.url:
            url = primary.registration.url
        if url:
            return Refusal("not_primary", f"This is a replica of {url}.", context={"primary": url})
        return Refusal(
            "not_primary",
            "This is a replica. Its service does not say where clients reach it: "
            "ESCROWMQ_REPLICA__ADVERTISE is not set there.",
        )

    def _find_primary(self) -> KnownPrimary | None:
        """The latest one that name servers have answered with, or that has registered here."""
        known = [self._registrar.primary]
        here = self._table.primary_of(self._group)
        if here is not None and here.registration.replication_address is not UNSET:
            known.append(
                KnownPrimary(here.registration.replication_address, here.registration.epoch)
            )
        return max(filter(None, known), key=attrgetter("epoch"), default=None)

    async def _follow(self) -> None:
        try:
            await asyncio.to_thread(make_data_folder, self._data_dir)
            # for the first start as a service
            spare = SpareSpace(self._data_dir)
            await asyncio.to_thread(spare.keep)
            await self._follower.run()
            await asyncio.to_thread(spare.keep)
        except FollowRefused as error:
            log.critical("replica_refused", primary=self._follower.primary, reason=str(error))
            self._end(exit_codes.CONFIGURATION)
        except (CannotBeMade, NoteDamaged) as error:
            self._fail(exit_codes.CONFIGURATION, error)
        except DirectoryInUse as error:
            self._fail(exit_codes.DIRECTORY_IN_USE, error)
        except FlushFailed as error:
            self._fail(exit_codes.STORAGE_FAILED, error)
        except StorageError as error:
            self._fail(exit_codes.DATA_DAMAGED, error)
        except OSError as error:
            self._fail(exit_codes.STORAGE_FAILED, error)
        except Exception:
            log.exception("replica_failed")
            self._end(exit_codes.BUG)

    def _fail(self, exit_code: int, error: Exception) -> None:
        log.critical("replica_failed", error=str(error))
        self._end(exit_code)

    def _end(self, exit_code: int) -> None:
        self.exit_code = self.exit_code or exit_code
        self.on_fatal()

    def _gauges(self) -> Iterator[Gauge]:
        follower = self._follower
        yield Gauge("escrowmq_replica_follows", "Is it connected? 0 or 1", follower.is_connected)
        yield Gauge(
            "escrowmq_replica_behind_bytes",
            "Log of the service that is not on the disk here",
            follower.behind_bytes,
        )
        yield from names_gauges(self._registrar, self._table)
