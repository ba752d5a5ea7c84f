"""How many disks have how much of the log, and up to where that is enough.

The own disk is one of them and always needed: what it has not synced is safe nowhere.
"""


class Copies:
    """Plain numbers, log offsets; nothing here waits or asks."""

    def __init__(self, own_end: int, *, needed: int = 1, safe_end: int = 0) -> None:
        """`own_end`: of what the own disk has. `needed`: disks, the own one among them.

        `safe_end`: of what is known to be safe already.
        """
        self._own_end = own_end
        self.needed = needed
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

    def note_own(self, synced_end: int) -> None:
        self._own_end = synced_end
        self._move()

    def note_other(self, node: str, synced_end: int) -> None:
        self._others[node] = max(synced_end, self._others.get(node, 0))
        self.is_short = len(self._others) < self.needed - 1
        self._move()

    def forget(self, node: str) -> None:
        """It is not connected any more. What was safe stays so."""
        self._others.pop(node, None)
        self.is_short = len(self._others) < self.needed - 1

    def safe_with(self, own_end: int) -> int:
        """The end of what is safe once the own disk has everything before `own_end`."""
        end = own_end
        if self.needed > 1:
            others = sorted(self._others.values(), reverse=True)
            end = 0 if self.is_short else min(end, others[self.needed - 2])
        return self.safe_end if end < self._together_until else max(self.safe_end, end)

    def _move(self) -> None:
        self.safe_end = self.safe_with(self._own_end)
