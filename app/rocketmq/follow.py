"""Follow a running broker: its log as one of its slaves, its state by its remoting protocol.

An empty copy gets the log from the first byte that the broker has. A broker takes 0 for "nothing",
and would send its last segment alone, so of a log that begins at 0 byte 1 is asked for: byte 0 is
the first one of a length below 16 MiB, and 0.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import structlog

from app.http.duplex import until_one_ends
from app.rocketmq.broker_state import (
    BrokerSettings,
    bounds_of,
    config_of,
    record_at,
    settings_of,
)
from app.rocketmq.followed_log import Followed, FollowedLog, read_note
from app.rocketmq.log_stream import BadBlock, LogStream
from app.rocketmq.remoting import BadAnswer, Broker, Refused

_TIMEOUT_S = 10.0
_SYNC_BYTES = 32 << 20
_FIRST_REPORT = 1

Note = Callable[[str, int, int], None]

log = structlog.get_logger()


class CannotFollow(Exception):
    """The broker's log does not continue the copy; the reason, for a person."""


class Pace(NamedTuple):
    """Seconds: until a broker that was lost is tried again, between two looks at how far it is, and
    between two syncs.
    """

    again_s: float = 5.0
    look_s: float = 1.0
    sync_s: float = 1.0


_PACE = Pace()


class BrokerFollower:
    """A broker, and the folder of its copy, which is the caller's."""

    def __init__(
        self,
        folder: Path,
        host: str,
        port: int,
        *,
        ha_port: int | None,
        note: Note,
        pace: Pace = _PACE,
    ) -> None:
        """`ha_port`: where its slaves connect; None: where its settings say.

        `note`: gets a word, bytes that are here, and bytes that the broker has.
        """
        self._folder = folder
        self._host, self._port, self._ha_port = host, port, ha_port
        self._note = note
        self._pace = pace
        self._log: FollowedLog | None = None
        self._was_there = False  # on both of its ports
        self._is_lost = False
        # one call at a time, also behind one whose caller was cancelled
        self._disk = ThreadPoolExecutor(max_workers=1)

    async def run(self, *, settle_s: float | None) -> int:
        """Follow, and come back to the broker when it was lost. Without end, or until its log has
        not grown for so many seconds, and all of it and its `config/` are here.

        The end of the copy. Raises CannotFollow, OtherLog, BadNote, CopyFailed, Refused, and what
        the first connection fails with: OSError, EOFError, BadAnswer.
        """
        try:
            while True:
                try:
                    await self._follow(settle_s)
                    assert self._log is not None, "it was opened"
                    return self._log.end
                except (OSError, EOFError, BadAnswer, BadBlock, Refused) as error:
                    is_final = isinstance(error, Refused) and error.is_final
                    if is_final or not self._was_there:
                        raise
                    if not self._is_lost:
                        log.warning("broker_lost", reason=str(error) or "no answer")
                    self._is_lost = True
                await asyncio.sleep(self._pace.again_s)
        finally:
            if self._log is not None:
                await self._on_disk(self._log.sync)
                self._log.close()
            self._disk.shutdown()

    async def _follow(self, settle_s: float | None) -> None:
        async with AsyncExitStack() as stack:
            broker = Broker(self._host, self._port, timeout_s=_TIMEOUT_S)
            await stack.enter_async_context(broker)
            settings = await settings_of(broker)
            copy = await self._open(broker, settings)
            ha_port = settings.ha_port if self._ha_port is None else self._ha_port
            stream = LogStream(self._host, ha_port, timeout_s=_TIMEOUT_S)
            await stack.enter_async_context(stream)
            self._was_there, self._is_lost = True, False
            await until_one_ends(self._receive(stream, copy), self._watch(broker, copy, settle_s))

    async def _open(self, broker: Broker, settings: BrokerSettings) -> FollowedLog:
        """The copy, which the broker's log continues. Raises CannotFollow."""
        bounds = await bounds_of(broker)
        copy = self._log
        if copy is None:
            note = Followed(
                cluster=settings.cluster,
                broker=settings.name,
                segment_bytes=settings.segment_bytes,
                begin=bounds.begin,
                end=bounds.begin,
            )
            known = read_note(self._folder)
            if known is not None and known.begin < known.end:
                if known.log != note.log:
                    raise CannotFollow(
                        f"{self._folder} is the copy of {known.log}, and this is {note.log}"
                    )
                note = known
            copy = self._log = FollowedLog(self._folder, note)
        await self._on_disk(copy.sync)
        if copy.end < bounds.begin:
            raise CannotFollow(
                f"the copy ends at {copy.end:,}, and the broker's log begins at {bounds.begin:,} "
                "by now: follow into an empty folder"
            )
        if copy.end > bounds.end:
            raise CannotFollow(_other_history(copy.end, bounds.end))
        last = copy.read_last_record()
        if last is not None and last[0] >= bounds.begin:
            at, record = last
            try:
                is_same = await record_at(broker, at) == record
            except Refused as error:
                if not error.has_not_found:
                    raise
                is_same = False
            if not is_same:
                raise CannotFollow(_other_history(at, bounds.end))
        return copy

    async def _receive(self, stream: LogStream, copy: FollowedLog) -> None:
        """Write what comes. Raises BadBlock, OSError, EOFError, TimeoutError."""
        loop = asyncio.get_running_loop()
        stream.report(copy.end or _FIRST_REPORT)
        synced_s = loop.time()
        while True:
            block = await stream.block(wait_s=self._pace.sync_s)
            if block is not None and block.data:
                if not copy.end and block.offset == _FIRST_REPORT:
                    copy.write(b"\0")
                if block.offset != copy.end:
                    raise BadBlock(f"a block at {block.offset} where {copy.end} goes on")
                copy.write(block.data)
            is_due = loop.time() - synced_s >= self._pace.sync_s
            if is_due or copy.end - copy.synced_end >= _SYNC_BYTES:
                await self._on_disk(copy.sync)
                stream.report(copy.synced_end or _FIRST_REPORT)
                synced_s = loop.time()

    async def _watch(self, broker: Broker, copy: FollowedLog, settle_s: float | None) -> None:
        """Look how far the broker is; return when all is here. Raises CannotFollow, as `ask`."""
        loop = asyncio.get_running_loop()
        settled_end, since_s = -1, 0.0
        while True:
            bounds = await bounds_of(broker)
            if copy.end < bounds.begin:
                raise CannotFollow(
                    f"the copy ends at {copy.end:,}, and the broker has dropped its log up to "
                    f"{bounds.begin:,}: follow into an empty folder"
                )
            self._note("copied", copy.synced_end - copy.begin, bounds.end - copy.begin)
            if bounds.end != settled_end or copy.synced_end != bounds.end:
                settled_end, since_s = bounds.end, loop.time()
            elif settle_s is not None and loop.time() - since_s >= settle_s:
                config = await config_of(broker)
                if (await bounds_of(broker)).end == settled_end:
                    await self._on_disk(copy.write_config, config)
                    return
            await asyncio.sleep(self._pace.look_s)

    async def _on_disk(self, call: Callable[..., None], *given: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._disk, call, *given)


def _other_history(at: int, end: int) -> str:
    return (
        f"the broker's log, which ends at {end:,}, is not the one that was copied, at {at:,}: it "
        "lost its end, or is another one. Follow into an empty folder"
    )
