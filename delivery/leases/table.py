"""The table of leases: the messages that each group has leased or settled. Pure.

It is derived from the lease events (`replay.py`), from a snapshot on (`snapshot.py`).
"""

from collections.abc import Iterator

from delivery.leases.group import GroupLeases
from delivery.leases.tasks import Tasks


class LeaseTable:
    """The leases of all groups."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupLeases] = {}
        self.tasks = Tasks()

    def __iter__(self) -> Iterator[GroupLeases]:
        return iter(self._groups.values())

    def find(self, group: str) -> GroupLeases | None:
        return self._groups.get(group)

    def group(self, group: str) -> GroupLeases:
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = GroupLeases(group)
        return known

    def put(self, leases: GroupLeases) -> None:
        """Replace what is known of the group."""
        self._groups[leases.group] = leases
