"""A machine that is the service or a replica of it, as its directory says, and changes its role
while it runs: a person promotes it, it hands over, or it hears of a later service.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog

from app.fencing.changing import Changing
from app.fencing.failover import FailoverWatch, LeftOutWatch
from app.fencing.others import others_of
from app.fencing.promotion import Candidate, Heard, Quorum
from app.fencing.schemas import NodePromise
from app.fencing.shared_registry import SharedRegistry
from app.life import exit_codes
from app.life.life import Life
from app.life.machine import Machine
from app.life.replica_life import ReplicaLife
from app.life.service_life import Phase, ServiceLifecycle
from app.observability.metrics import Metrics
from app.replicas import folder, promotion
from app.replicas.folder import NoteDamaged, ReplicaNote
from app.replicas.kept_promise import check_near
from app.replicas.promise import CannotPromote, LogPlace, Promise, PromiseRefused
from app.replicas.promotion import NoReplica
from app.services import Reading, Services
from app.settings import Settings
from app.word_sets import Role
from storage.clock import SystemClock
from storage.errors import MessagingError, StorageError
from storage.identifiers import SystemRandom

# a replica gets so much, or more, while the service waits for it at its end
_MOST_BEHIND_BYTES = 16 << 20

_LOOK_S = 0.1  # so often it looks whether there is a service

Hear = Callable[[Quorum], Awaitable[list[Heard]]]
_Result = TypeVar("_Result")

log = structlog.get_logger()


class NodeLife:
    """One role after another, from the start of the process to its end. Event loop only."""

    def __init__(self, settings: Settings, metrics: Metrics, machine: Machine) -> None:
        self.exit_code = 0
        self.on_fatal: Callable[[], None] = lambda: None
        self.on_loaded: Callable[[], None] = lambda: None
        self._settings = settings
        self._metrics = metrics
        self._machine = machine
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._is_stopping = False
        self._last_promised = Promise()
        self._failover = FailoverWatch(
            SystemClock(), settings.replica.failover_after_ms, SystemRandom()
        )
        self._left_out = LeftOutWatch(SystemClock())
        self._watching: asyncio.Task[None] | None = None
        machine.node.promote = self.promote
        self._life: ServiceLifecycle | ReplicaLife = self._made()

    @property
    def role(self) -> Role:
        return self._life.role

    def start(self) -> None:
        self._life.start()
        if self._settings.replica.failover_after_ms:
            self._watching = asyncio.create_task(self._watch(), name="failover")

    def begin_stop(self) -> None:
        self._is_stopping = True
        self._life.begin_stop()

    async def close(self) -> None:
        self.begin_stop()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        if self._changes:
            await asyncio.wait(self._changes)
        await self._life.close()

    def get_services(self) -> Services:
        """Raises MessagingError while it is a replica, or its role changes."""
        return self._life.get_services()

    def get_reading(self) -> Reading:
        return self._life.get_reading()

    def get_readiness(self) -> Mapping[str, str]:
        return self._life.get_readiness()

    def refuse_role(self, role: Role) -> None:
        self._life.refuse_role(role)

    async def promote(self, *, hand_over: bool, accept_loss: bool) -> LogPlace:
        """Become the service: the epoch in which it begins, and the end of its log.

        `hand_over`: a running service stops first. `accept_loss`: even without messages that a
        service that was alone has.

        Durable on return. Raises CannotPromote: the node stays a replica.
        """
        if not self._settings.replica.nodes:
            raise CannotPromote(
                "ESCROWMQ_REPLICA__NODES is not set, so no other node can promise: stop it, and "
                "use `escrowmq replica promote --data-dir`"
            )
        if self._changing.locked() or self._is_stopping:
            raise CannotPromote("it changes its role already, or ends")
        ends = (lambda _: True) if hand_over else (lambda _: False)
        hear = partial(self._hear, ends=ends)
        promote = self._promote(hear, accept_loss=accept_loss)
        return await asyncio.shield(self._in_background(promote))

    async def _watch(self) -> None:
        """Take the place of a service that is lost to the other replicas, too; as the service,
        begin again where one of them may not follow it.
        """
        waits_for = ""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._is_there_a_service():
                self._failover.note_service()
                waits_for = ""
                if self.role == "primary" and self._left_out.is_due():
                    try:
                        await self._look_for_left_out()
                    except Exception:
                        log.exception("failover_failed")
            elif self._failover.is_due():
                try:
                    await self._replace_lost()
                except CannotPromote as reason:
                    self._failover.postpone()
                    if str(reason) != waits_for:
                        waits_for = str(reason)
                        log.warning("failover_waits", reason=waits_for)
                except Exception:
                    log.exception("failover_failed")
                    self._failover.postpone()

    async def _look_for_left_out(self) -> None:
        place = await self._machine.node.promising.place()
        settings = self._settings
        async with others_of(settings.replica, settings.names, settings.api_keys) as quorum:
            heard = await quorum.ask()
        nodes = quorum.left_out(heard, place.last_epoch) if place is not None else []
        if lasting := self._left_out.note(nodes):
            log.warning("begins_again", cannot_follow=lasting)
            try:
                await asyncio.shield(self._in_background(self._begin_again()))
            except (CannotPromote, PromiseRefused) as reason:
                log.warning("does_not_begin_again", reason=str(reason))

    async def _begin_again(self) -> None:
        """Be the service in an epoch later than any promise. Raises PromiseRefused, CannotPromote:
        it is a replica then.
        """
        async with self._changing:
            if self.role != "primary" or self._is_stopping:
                return
            await self._follow_instead(Promise())
        await self._promote(partial(self._hear, ends=lambda _: False))

    def _is_there_a_service(self) -> bool:
        """Whether there is a service: here, at the other end, or about to be."""
        promising = self._machine.node.promising
        promised, self._last_promised = self._last_promised, promising.promised
        return (
            self._changing.locked()
            or self.role == "primary"
            or promising.is_connected
            or promised != promising.promised
        )

    async def _promote(self, hear: Hear, *, accept_loss: bool = False) -> LogPlace:
        """`hear`: what the others say to it, before anything ends here."""
        settings = self._settings
        registry = SharedRegistry(
            settings.registry_url, settings.store_dir, settings.replica.node_name
        )
        async with self._changing:
            if self.role != "replica":
                raise CannotPromote("it has become the service meanwhile")
            async with others_of(settings.replica, settings.names, settings.api_keys) as quorum:
                await registry.check(accept_loss=accept_loss)
                heard = await hear(quorum)
                await self._end_role()
                if self.exit_code:
                    raise CannotPromote("it has ended, its log says why")
                try:
                    begun = await promotion.promote(
                        settings.data_dir,
                        settings.local,
                        registry.claim(partial(quorum.claim, heard=heard), accept_loss=accept_loss),
                        may_be_empty=True,
                    )
                except (NoReplica, NoteDamaged, StorageError, OSError) as error:
                    raise CannotPromote(str(error)) from error
                finally:
                    self._begin_role()
            log.warning("promoted", epoch=begun.last_epoch, end=begun.end)
            return begun

    async def _hear(
        self,
        quorum: Quorum,
        *,
        ends: Callable[[NodePromise], bool],
        check: Callable[[list[Heard]], None] = lambda _: None,
    ) -> list[Heard]:
        """Ask the others, before anything ends here; and before that, have a service hand over
        where it is to: `ends` says so of one that answers.

        Raises CannotPromote. `check` may raise it, too, before any service has stopped.
        """
        asked = await quorum.ask()
        heard = await quorum.take_over(await self._candidate(), asked, ends=ends, check=check)
        quorum.epoch_for(await self._candidate(), heard)
        if heard is asked:
            check(heard)
        return heard

    async def _replace_lost(self) -> None:
        """Raises CannotPromote where there may be a service, and where there never was one."""
        # Not as a part of the promotion: it would refuse the first one, by a person, meanwhile.
        if (await self._candidate()).place == LogPlace(0, 0):
            raise CannotPromote("no service has begun yet: promote one of the machines")
        await asyncio.shield(self._in_background(self._promote(self._hear_of_loss)))

    async def _hear_of_loss(self, quorum: Quorum) -> list[Heard]:
        """Raises CannotPromote where there may be a service."""
        candidate = await self._candidate()

        def check(heard: list[Heard]) -> None:
            quorum.check_loss(heard)
            before = quorum.before(candidate, heard)
            if not self._failover.is_its_turn(len(before)):
                raise CannotPromote(f"{', '.join(before)} is as far, and tries first")
            promising = self._machine.node.promising
            if promising.promised != candidate.promised:
                raise CannotPromote(
                    f"it has promised to follow {promising.promised.node} meanwhile"
                )
            if promising.is_connected:
                raise CannotPromote("it is connected to a service meanwhile")

        # A service that this machine must not follow can do nothing without the others.
        heard = await self._hear(
            quorum,
            ends=lambda one: (one.last_epoch or 0) < candidate.promised.epoch,
            check=check,
        )
        log.warning("failover", node=candidate.node, end=candidate.place.end)
        return heard

    async def _candidate(self) -> Candidate:
        """Raises CannotPromote."""
        node = self._machine.node
        place = await node.promising.place()
        if place is None:
            raise CannotPromote(f"{node.node} is starting: try again when its log is open")
        return Candidate(node.node, place, node.promising.promised)

    async def _give_up(self, promise: Promise) -> LogPlace:
        """Stop the service, which another node takes over, and follow that.

        Raises PromiseRefused: nothing has changed.
        """
        if self._changing.locked() or self._is_stopping:
            raise PromiseRefused("it changes its role already, or ends")
        return await asyncio.shield(self._in_background(self._hand_over(promise)))

    async def _hand_over(self, promise: Promise) -> LogPlace:
        async with self._changing:
            service, leading = self._life, self._machine.node.promising
            if not isinstance(service, ServiceLifecycle):
                raise PromiseRefused("it has become a replica meanwhile")
            before = await leading.place()
            if before is None or promise.epoch <= before.last_epoch:
                raise PromiseRefused("its own epoch of the log is not earlier")
            check_near(promise, before)
            if service.phase is Phase.READY:  # else it has nothing to hand over
                _check_successor(service.get_services(), promise.node)
            log.warning("hands_over", node=promise.node, epoch=promise.epoch)
            await self._follow_instead(promise)
            return await leading.place() or before

    async def _stand_down(self, service: Life) -> None:
        """Follow the node that is the service now."""
        async with self._changing:
            if self._life is not service or self._is_stopping:
                return
            log.warning("stands_down")
            with suppress(PromiseRefused):
                await self._follow_instead(Promise())

    async def _follow_instead(self, promise: Promise) -> None:
        """End the service, and be a replica in its directory. Raises PromiseRefused where that
        fails: the process ends then, in no role.
        """
        try:
            await self._end_role()
            if not self.exit_code:
                await self._follow(promise)
        except OSError as error:
            log.critical("cannot_follow", error=str(error))
            self._end_process(exit_codes.STORAGE_FAILED)
            raise PromiseRefused(f"it has ended, and its disk fails: {error}") from error
        except Exception as error:
            log.exception("cannot_follow")
            self._end_process(exit_codes.BUG)
            raise PromiseRefused("it has ended, its log says why") from error
        if self.exit_code:  # what its disk has is unknown: this process must not read it again
            raise PromiseRefused("it has ended, its log says why")

    async def _follow(self, promise: Promise) -> None:
        """Raises OSError."""
        data_dir = self._settings.data_dir
        if promise.node:
            await asyncio.to_thread(folder.write_promise, data_dir, promise)
        await asyncio.to_thread(folder.write_note, data_dir, ReplicaNote(primary=""))
        self._begin_role()
        if isinstance(self._life, ReplicaLife):
            await self._life.wait_open()

    async def _end_role(self) -> None:
        """The directory is in no use then, and what has been promised is on disk."""
        before, self._machine.node.promising = self._machine.node.promising, Changing()
        with suppress(MessagingError):
            await before.place()  # behind a promise that is being made
        await self._life.close()

    def _begin_role(self) -> None:
        """The one before has ended."""
        if self._is_stopping:
            return
        self._metrics.forget_watched()
        self._life = self._made()
        self._life.start()

    def _made(self) -> ServiceLifecycle | ReplicaLife:
        """The life in the role that the directory states; in a new one the node is a replica."""
        settings, machine = self._settings, self._machine
        life: ServiceLifecycle | ReplicaLife
        if folder.is_replica(settings.data_dir) or not folder.has_log(settings.data_dir):
            life = ReplicaLife(settings, self._metrics, machine)
        else:
            life = ServiceLifecycle(settings, self._metrics, machine)
            life.leading.give_up = self._give_up
        life.on_fatal = partial(self._note_fatal, life)
        life.on_loaded = lambda: self.on_loaded()
        return life

    def _note_fatal(self, life: Life) -> None:
        if life is not self._life:
            return  # it ends already
        if life.exit_code == exit_codes.DEPOSED and not self._is_stopping:
            self._in_background(self._stand_down(life))
        else:
            self._end_process(life.exit_code)

    def _end_process(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.on_fatal()

    def _in_background(self, change: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Run to the end, whether or not the caller waits."""
        task = asyncio.create_task(change, name="role")
        self._changes.add(task)
        task.add_done_callback(self._note_changed)
        return task

    def _note_changed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        _ = task.cancelled() or task.exception()  # of one that has asked, and does not wait


def _check_successor(services: Services, node: str) -> None:
    """Raise PromiseRefused if this node could not continue as a replica at once."""
    if services.missing_replicas.is_noted:
        raise PromiseRefused(
            "it has acknowledged messages alone, which its replicas do not have yet: try again "
            "when they have"
        )
    behind = {one.node: one.behind_bytes for one in services.replicas.connected()}
    if node not in behind:
        raise PromiseRefused(f"{node} does not follow it at the moment")
    if behind[node] > _MOST_BEHIND_BYTES:
        raise PromiseRefused(
            f"{node} is {behind[node]:,} bytes behind: try again when it has caught up"
        )
