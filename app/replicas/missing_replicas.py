"""Goes on without the replicas that are missing, where the settings say so.

Before the service acknowledges what its own disk alone has, that is entered in the registry, which
all machines share: none of them leads then, until the replicas have everything again and the entry
is taken back (`leader.py`). A clock decides when it is tried, and nothing else.
"""

import asyncio

import structlog

from app.replicas.leader import LeaderEntry
from app.replicas.options import ReplicaOptions, WhenMissing
from app.replicas.replicated_log import ReplicatedLog
from storage.clock import Clock
from storage.errors import RegistryUnavailable, StorageFull

_LOOK_S = 0.1
_ENTRY_MS = 1_000  # so often a service that is alone reads whether it still leads
_PAUSE_MS = 1_000  # after an entry that failed
# after replicas were too slow to have everything
_LONG_PAUSE_MS = 30_000
_KEEPS_UP_MS = 1_000  # within so long replicas must have what the own disk had

log = structlog.get_logger()


class MissingReplicas:
    """Begins and ends the time in which the service is alone. Event loop only."""

    def __init__(
        self,
        store: ReplicatedLog,
        entry: LeaderEntry | None,
        clock: Clock,
        options: ReplicaOptions,
    ) -> None:
        """`entry`: None where the registry is not shared, so that it is never alone."""
        self._store = store
        self._entry = entry if options.copies > 1 else None
        self._clock = clock
        self._node = options.node_name
        self._degrades = options.when_missing is WhenMissing.DEGRADE
        self._after_ms = options.degrade_after_ms
        self._is_entered = False  # that it is alone, for certain
        self._may_be_entered = False
        self.is_alone = False  # what it has may be here alone: no other machine takes its place
        self._well_ms = clock.monotonic_ms()
        self._not_before_ms = 0  # of the next attempt to be together, or to be alone
        self._entry_ms = 0  # when the entry was last read
        self._safe_end = 0
        self._mark, self._mark_ms = 0, 0  # where the own disk was then
        self._last_reason = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_noted(self) -> bool:
        """May the registry say that this machine is alone?"""
        return self._is_entered or self._may_be_entered

    async def start(self) -> None:
        """Go on as before: alone at once, where it was. Raises RegistryUnavailable."""
        if self._entry is None:
            return
        before = await self._entry.read()
        if before.is_alone and before.node == self._node:
            self._may_be_entered = self.is_alone = True
            self._store.end_alone()
            if self._degrades and await self._enter(self._entry):
                self._go_alone()
        if self._degrades or self._may_be_entered:
            self._well_ms = self._clock.monotonic_ms()
            self._task = asyncio.create_task(self._watch(self._entry), name="missing replicas")

    async def stop(self) -> None:
        """Stop watching; what is stored of the missing replicas stays as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _watch(self, entry: LeaderEntry) -> None:
        while self._degrades or self.is_noted:
            try:
                await self._look(entry)
            except (RegistryUnavailable, StorageFull) as error:
                self._note_refused(str(error))
            except Exception:
                log.exception("missing_replicas_failed")
                self._pause(_PAUSE_MS)
            await asyncio.sleep(_LOOK_S)

    async def _look(self, entry: LeaderEntry) -> None:
        store, now_ms = self._store, self._clock.monotonic_ms()
        is_missing = self._is_missing(now_ms)
        if store.is_alone and now_ms - self._entry_ms >= _ENTRY_MS:
            await self._check_entry(entry, now_ms)
        elif now_ms < self._not_before_ms:
            return
        elif store.is_alone:
            if self._keep_up(now_ms):
                self._well_ms = now_ms
                store.end_alone()
                log.info("waits_for_replicas_again")
        elif self.is_noted and store.is_together:
            await self._take_back(entry)
        elif self._degrades and is_missing:
            if self._is_entered:  # they had nearly everything, and are gone, or too slow
                self._go_alone()
                self._pause(_LONG_PAUSE_MS)
            elif await self._enter(entry):
                self._go_alone()

    def _is_missing(self, now_ms: int) -> bool:
        """Has nothing become safe for so long, though the own disk has it, or may nothing new?"""
        store, before = self._store, self._safe_end
        self._safe_end = store.synced_offset()
        moves = self._safe_end > before or self._safe_end >= store.on_disk_end()
        if moves and not store.lacks_copies:
            self._well_ms = now_ms
        return now_ms - self._well_ms >= self._after_ms

    def _keep_up(self, now_ms: int) -> bool:
        """Whether enough replicas have the log that the own disk had a short time ago."""
        if now_ms - self._mark_ms > _KEEPS_UP_MS:
            self._mark, self._mark_ms = self._store.on_disk_end(), now_ms
        return self._store.copied_end() >= self._mark

    def _go_alone(self) -> None:
        self.is_alone = True
        self._store.go_alone()
        self._last_reason = ""
        log.warning("acknowledges_alone", node=self._node)

    async def _enter(self, entry: LeaderEntry) -> bool:
        """Enter that it is alone; whether that may be. Raises RegistryUnavailable, StorageFull."""
        epoch = self._store.epochs.last_epoch
        self._may_be_entered = True
        found = await entry.change(lambda leader: leader.gone_alone(epoch, self._node))
        self._is_entered = self._may_be_entered = found is not None
        self._entry_ms = self._clock.monotonic_ms()
        if found is None:
            leader = await entry.read()
            self._note_refused(
                f"the registry says that {leader.node} leads, in epoch {leader.epoch}, and this "
                f"machine is in epoch {epoch}: promote the one that is to be the service"
            )
        return self._is_entered

    async def _take_back(self, entry: LeaderEntry) -> None:
        """Raises RegistryUnavailable, StorageFull."""
        epoch = self._store.epochs.last_epoch
        self._is_entered = False
        await entry.change(lambda leader: leader.together(epoch, self._node))
        self._may_be_entered = self.is_alone = False
        self._last_reason = ""
        log.info("acknowledges_with_replicas")

    async def _check_entry(self, entry: LeaderEntry, now_ms: int) -> None:
        """See that no other node was promoted all the same, by a person who accepts the loss."""
        self._entry_ms = now_ms
        try:
            leader = await entry.read()
        except RegistryUnavailable:
            return  # then none can be
        if leader.node != self._node:
            self._is_entered = self._may_be_entered = self.is_alone = False
            self._store.end_alone()
            log.critical("alone_no_more", leader=leader.node, epoch=leader.epoch)

    def _note_refused(self, reason: str) -> None:
        """Note a refused change, which is tried again after a while; logged once."""
        self._pause(_PAUSE_MS)
        if reason != self._last_reason:
            self._last_reason = reason
            log.warning("missing_replicas_not_entered", reason=reason)

    def _pause(self, pause_ms: int) -> None:
        self._not_before_ms = self._clock.monotonic_ms() + pause_ms
