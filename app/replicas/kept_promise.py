"""The promise of this replica, on its disk, and the primary that has let it in."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from app.replicas import folder
from app.replicas.frames import BadFrame
from app.replicas.promise import LogPlace, Promise, PromiseRefused
from storage.formats.epochs import EPOCHS_OF_A_PROMOTION

_Result = TypeVar("_Result")

# a thousand promotions; a promise beyond any epoch could never be kept
_MOST_EPOCHS_AHEAD = 1_000 * EPOCHS_OF_A_PROMOTION


class InThread(Protocol):
    """Calls a function of files in another thread."""

    async def __call__(self, call: Callable[..., _Result], *given: Any) -> _Result: ...


class KeptPromise:
    """Event loop only. `lock` is held while the log, or the promise, becomes another."""

    def __init__(self, data_dir: Path, in_thread: InThread, *, follows_for_good: bool) -> None:
        """`follows_for_good`: is each primary that is followed promised, too?"""
        self._data_dir = data_dir
        self._in_thread = in_thread
        self._follows_for_good = follows_for_good
        self.lock = asyncio.Lock()
        self.promised = Promise()  # on the disk, or about to be
        self.joined = Promise()  # the primary that has let it in

    async def load(self) -> None:
        """Raises NoteDamaged, OSError."""
        self.promised = await self._in_thread(folder.read_promise, self._data_dir)

    async def make(
        self, promise: Promise, place: LogPlace, *, on_promised: Callable[[], None]
    ) -> None:
        """Promise it, where the log is there. Durable on return.

        Before it is written, and also where it cannot be, `check` refuses every earlier primary,
        and `on_promised` is called if one has been joined. Needs the lock. Raises PromiseRefused.
        """
        check_near(promise, place)
        if not self.promised.allows(promise.epoch, promise.node):
            had = self.promised
            raise PromiseRefused(f"it has promised to follow {had.node}, in epoch {had.epoch}")
        self.promised = promise
        if self.joined != promise:
            on_promised()
        try:
            await self._in_thread(folder.write_promise, self._data_dir, promise)
        except OSError as error:
            raise PromiseRefused(f"its promise cannot be written: {error}") from None

    async def join(self, primary: Promise) -> None:
        """Follow it from now on. Raises BadFrame where that is against the promise; OSError."""
        async with self.lock:
            self.joined = primary
            self.check()
            if self._follows_for_good and primary != self.promised:
                await self._in_thread(folder.write_promise, self._data_dir, primary)
                self.promised = primary

    def check(self) -> None:
        """May more be taken from the primary that it has joined? Raises BadFrame."""
        had, joined = self.promised, self.joined
        if not had.allows(joined.epoch, joined.node):
            raise BadFrame(
                f"{joined.node or 'it'} is in epoch {joined.epoch}, and this machine has promised "
                f"to follow {had.node}, in epoch {had.epoch}"
            )


def check_near(promise: Promise, place: LogPlace) -> None:
    """Raises PromiseRefused where it is not about an epoch that the log can come to."""
    if promise.epoch > place.last_epoch + _MOST_EPOCHS_AHEAD:
        raise PromiseRefused(f"its log is in epoch {place.last_epoch}, far from that")
