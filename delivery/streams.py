"""Streams: messages of a group are sent as they arrive, at most so many of them unacknowledged.

What a stream is given are leases as those of a receive. Each of its receives is an attempt with a
name that no client can give, so that the log shows which leases were granted over a stream: the
next stream of the group goes on with those of a stream that was lost, after a restart too. A client
often connects again before it is known here that its connection is lost: then the stream that has
just been opened goes on with them as soon as it is known.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from typing import NamedTuple

from delivery.groups import GroupRules
from delivery.leases import receipt_handle
from delivery.leases.attempts import Attempt
from delivery.leases.group import GroupLeases
from delivery.leases.journal import LeaseJournal
from delivery.receive.receive import LeasedMessage, Receiver, Request, Room
from storage.identifiers import Random

_PREFIX = "\x01stream "
_RECONNECT_MS = 60_000  # after which a stream is no longer that of a client that has come back
_AT_ONCE = 32  # messages that are leased together


class StreamOptions(NamedTuple):
    """`credit`: the most unacknowledged messages. `lease_ms`: of each, from when it is given."""

    credit: int
    lease_ms: int
    worker: str | None = None


class Streams:
    """The streams of all groups. Event loop only."""

    def __init__(self, journal: LeaseJournal, receiver: Receiver, randomness: Random) -> None:
        self.journal = journal
        self.receiver = receiver
        self._randomness = randomness
        self._live: set[tuple[str, str]] = set()  # attempts of open streams, by group and name
        self._open: dict[str, list[Stream]] = {}  # by group, in the order in which they were opened

    def open(self, group: str, options: StreamOptions) -> "Stream":
        """Open a stream, which goes on with what the streams that were lost hold still."""
        lost = [
            name
            for name, _ in self.journal.table.group(group).attempts
            if name.startswith(_PREFIX) and (group, name) not in self._live
        ]
        stream = Stream(self, group, options, opened_ms=self.journal.clock.monotonic_ms())
        self._give(stream, lost)
        self._open.setdefault(group, []).append(stream)
        return stream

    def close(self, stream: "Stream") -> None:
        """Close a stream whose client has left: what is leased is for the next stream, which may be
        open by now.
        """
        group, names = stream.group, stream.names
        self.forget(group, names)
        streams = self._open[group]
        later = streams[streams.index(stream) + 1 :]
        streams.remove(stream)
        if not streams:
            del self._open[group]
        if later and self.journal.clock.monotonic_ms() - later[-1].opened_ms < _RECONNECT_MS:
            self._give(later[-1], names)
            self.journal.calls.notify(group)

    def _give(self, stream: "Stream", names: Collection[str]) -> None:
        self._live |= {(stream.group, name) for name in names}
        stream.go_on_with(names)

    def new_name(self, group: str) -> str:
        """A name for an attempt of an open stream."""
        name = f"{_PREFIX}{self._randomness.getrandbits(63):016x}"
        self._live.add((group, name))
        return name

    def forget(self, group: str, names: Iterable[str]) -> None:
        """Forget attempts that are of no open stream any more."""
        self._live.difference_update((group, name) for name in names)


class Stream:
    """One stream; `Streams.close` when its client has left. `names`: of its attempts. `options`
    may be replaced: for what is leased from then on.

    `opened_ms`: on the monotonic clock.
    """

    def __init__(
        self, streams: Streams, group: str, options: StreamOptions, *, opened_ms: int
    ) -> None:
        self.group = group
        self.opened_ms = opened_ms
        self.names: set[str] = set()
        self._streams = streams
        self.options = options
        self._lost: deque[str] = deque()  # attempts of earlier streams
        self._attempts: dict[str, Attempt] = {}  # whose messages were given, or are pending
        self._pending: deque[LeasedMessage] = deque()  # leased, and not given yet
        self._known: GroupLeases | None = None

    def go_on_with(self, lost: Iterable[str]) -> None:
        """Give the messages of these attempts again, before any others."""
        self._lost.extend(lost)
        self.names.update(lost)

    async def take(
        self,
        rules: GroupRules,
        *,
        max_bytes: int,
        at_most: int | None = None,
        memory: Room | None = None,
    ) -> list[LeasedMessage]:
        """Lease the messages that there is room for now; none where there is nothing, or no room.

        Raises as a receive.
        """
        room = self._room()
        while room and self._lost and not self._pending:
            name = self._lost.popleft()
            attempt = self._leases().attempts.find(name)
            if attempt is not None:
                self._attempts[name] = attempt
                self._pending += await self._streams.receiver.again(self.group, name)
                room = self._room()
        room = room if at_most is None else min(room, at_most)
        if self._pending:
            count = min(room, len(self._pending))
            if memory is not None:
                await memory.fit([one.found for one in islice(self._pending, count)])
            return [self._pending.popleft() for _ in range(count)]
        if not room:
            return []
        name = self._streams.new_name(self.group)
        self.names.add(name)
        try:
            found = await self._streams.receiver.receive(
                self.group, rules, self._request(room, name, max_bytes)._replace(room=memory)
            )
        except Exception:  # nothing is leased, and the next try has another name
            self._forget(name)
            raise
        noted = self._leases().attempts.find(name)
        if noted is None:
            self._forget(name)
        else:
            self._attempts[name] = noted
        return found

    async def wait(self, rules: GroupRules, *, timeout_ms: int, ended: asyncio.Event) -> bool:
        """Return once it may be worth taking again, or `ended` is set; False: the time is up."""
        woken, arrived = asyncio.Event(), False

        def arrive() -> None:
            nonlocal arrived
            arrived = True
            woken.set()

        calls, receiver = self._streams.journal.calls, self._streams.receiver
        waiting = [asyncio.ensure_future(one.wait()) for one in (woken, ended)]
        waits = False
        calls.add(self.group, woken.set)
        try:
            if self._room():
                await receiver.begin_wait(self.group, rules, self._request(1, None, 1), arrive)
                waits = True
            done, _ = await asyncio.wait(
                waiting, timeout=timeout_ms / 1_000, return_when=asyncio.FIRST_COMPLETED
            )
            return bool(done)
        finally:
            for one in waiting:
                one.cancel()
            calls.remove(self.group, woken.set)
            # what it was called for is for another consumer, unless it is taken now
            if waits and (not arrived or ended.is_set()):
                receiver.end_wait(self.group, arrive)

    def _leases(self) -> GroupLeases:
        return self._streams.journal.table.group(self.group)

    def _room(self) -> int:
        """How many more messages may be given now."""
        leases, now_ms = self._leases(), self._streams.journal.clock.monotonic_ms()
        if leases is not self._known:  # the group was deleted, and made again
            self._known = leases
            self._attempts.clear()
            self._pending.clear()
        self._pending = deque(one for one in self._pending if _is_leased(leases, one, now_ms))
        held = 0
        for name, attempt in list(self._attempts.items()):
            count = sum(1 for _ in leases.attempts.still_leased(attempt, now_ms))
            held += count
            if not count:
                del self._attempts[name]
                self._forget(name)
        return max(0, self.options.credit - (held - len(self._pending)))

    def _forget(self, name: str) -> None:
        self.names.discard(name)
        self._streams.forget(self.group, [name])

    def _request(self, room: int, attempt_id: str | None, max_bytes: int) -> Request:
        return Request(
            max_messages=min(room, _AT_ONCE),
            max_bytes=max_bytes,
            lease_ms=self.options.lease_ms,
            worker=self.options.worker,
            attempt_id=attempt_id,
        )


def _is_leased(leases: GroupLeases, message: LeasedMessage, now_ms: int) -> bool:
    found = receipt_handle.decode(message.handle)
    assert found is not None, "a handle of ours"
    hash_, offset, lease = found
    queue = leases.by_hash(hash_)
    return queue is not None and queue.slots.is_leased(offset, lease, now_ms)
