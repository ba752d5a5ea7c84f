"""How many disks have how much of the log, and up to where that is enough.

The own disk is one of them and always needed: what it has not synced is safe nowhere. While other
disks are missing it can be enough, see `Copies.go_alone`.
"""

from storage.message import safe_on


class Copies:
    """Plain numbers, log offsets; nothing here waits or asks."""

    def __init__(self, own_end: int, *, needed: int = 1, safe_end: int = 0) -> None:
        """`own_end`: of what the own disk has. `needed`: disks, the own one among them.

        `safe_end`: of what is known to be safe already.
        """
        self._own_end = own_end
        self.needed = needed
        self.is_alone = False  # the own disk is enough for now
        self.sureness = safe_on(needed)  # of what becomes safe now
        self._others: dict[str, int] = {}
        # all before it is on enough disks: no loss of one takes it, and it is never cut
        self.safe_end = own_end if needed == 1 else safe_end
        self.is_short = needed > 1  # too few disks are there for anything new to become safe
        self._together_until = 0  # nothing more is safe before all of this is

    def keep_together(self, end: int) -> None:
        """Call nothing more safe before everything up to this log offset is.

        The log that a new primary has found is on enough disks only with a unit of its own epoch:
        another node whose log has a later epoch could still lead, and all others would follow it.
        Source: Raft 5.4.2.
        """
        self._together_until = end

    def go_alone(self) -> None:
        """Call safe what the own disk has, from now on.

        No other node may lead from before this call until `is_together`.
        """
        self.is_alone = True
        self.sureness = safe_on(1)
        self._count()
        self._move()

    def end_alone(self, end: int) -> None:
        """Call nothing more safe before as many disks as must have it have everything up to this
        log offset: all that is written by now.
        """
        self.is_alone = False
        self._together_until = max(self._together_until, end)
        self._count()
        self._move()

    @property
    def is_together(self) -> bool:
        """Is everything that is safe on as many disks as must have it?"""
        return not self.is_alone and self.common_end >= self._together_until

    @property
    def common_end(self) -> int:
        """The end of what is on as many disks as must have it; 0 where too few are there."""
        return self._common_end(self._own_end)

    def note_own(self, synced_end: int) -> None:
        self._own_end = synced_end
        self._move()

    def note_other(self, node: str, synced_end: int) -> None:
        self._others[node] = max(synced_end, self._others.get(node, 0))
        self._count()
        self._move()

    def forget(self, node: str) -> None:
        """Forget a replica that is no longer connected. What was safe stays so."""
        self._others.pop(node, None)
        self._count()

    def safe_with(self, own_end: int) -> int:
        """The end of what is safe once the own disk has everything before `own_end`."""
        if self.is_alone:
            return max(self.safe_end, own_end)
        end = self._common_end(own_end)
        return self.safe_end if end < self._together_until else max(self.safe_end, end)

    def _common_end(self, own_end: int) -> int:
        if self.needed == 1:
            return own_end
        if len(self._others) < self.needed - 1:
            return 0
        return min(own_end, sorted(self._others.values(), reverse=True)[self.needed - 2])

    def _count(self) -> None:
        self.is_short = not self.is_alone and len(self._others) < self.needed - 1

    def _move(self) -> None:
        self.safe_end = self.safe_with(self._own_end)
        if self.sureness.copies < self.needed and self.is_together:
            self.sureness = safe_on(self.needed)
