"""Which files of a store go over, and how: as hard links or as copies. Pure.

Sealed segments are never written to again, by neither side: a broker and EscrowMQ remove the names
of expired ones, and that leaves the other's name alone. So these are linked. The last segment that
has data is appended to, and everything else may be written to in place: these are copied.
"""

from collections.abc import Sequence
from typing import NamedTuple

from app.store_moves.geometry import TIMER_LOG
from app.store_moves.store_folder import CONSUME_QUEUES, Listing, base_offset

# `abort` says who had the store last, if it was killed.
_SINGLE_FILES = ("abort", "checkpoint", "timerwheel")
_CONFIG = "config"
# What EscrowMQ has in a store beside a broker's files.
_OWN_FOLDERS = ("snapshots", "timers", "making")
_OWN_FILES = ("registry-id", "recovery-reports.json")


class Plan(NamedTuple):
    """Paths in the store's folder; `copied` with their sizes."""

    linked: dict[str, int]
    copied: dict[str, int]

    @property
    def paths(self) -> list[str]:
        return sorted([*self.linked, *self.copied])

    @property
    def total_bytes(self) -> int:
        return sum(self.linked.values()) + sum(self.copied.values())


def plan_import(listing: Listing, used_segments: Sequence[str], copied_from: str = "") -> Plan:
    """A broker's store for EscrowMQ, which rebuilds queues and index from the log.

    Of each queue the newest file is kept: it has the end of the queue where all of its messages
    have expired. `copied_from`: the first segment that is copied, if not the last one.
    """
    plan = _segments(listing, used_segments, copied_from)
    for path in _newest_queue_files(listing):
        plan.copied[path] = listing.files[path]
    for path, size in listing.files.items():
        is_config = path.startswith(f"{_CONFIG}/")
        if path in _SINGLE_FILES or is_config or path.startswith(f"{TIMER_LOG}/"):
            plan.copied[path] = size
    return plan


def plan_export(listing: Listing, used_segments: Sequence[str], copied_from: str = "") -> Plan:
    """The files of EscrowMQ's store, to be opened once more before the broker gets it."""
    plan = _segments(listing, used_segments, copied_from)
    for path, size in listing.files.items():
        if path != "lock" and not path.startswith(("commitlog/", "making/", "repair-")):
            plan.copied[path] = size
    return plan


def of_escrowmq_alone(listing: Listing) -> list[str]:
    """Files of an opened and closed store that a broker has no use for."""
    return [
        path
        for path in listing.files
        if path.partition("/")[0] in _OWN_FOLDERS or path in _OWN_FILES
    ]


def _segments(listing: Listing, used: Sequence[str], copied_from: str) -> Plan:
    first_copied = min(copied_from or used[-1], used[-1]) if used else ""
    linked = {path: listing.files[path] for path in used if path < first_copied}
    return Plan(linked, {path: listing.files[path] for path in used if path >= first_copied})


def _newest_queue_files(listing: Listing) -> list[str]:
    """Also the file before the newest, which may have been made ahead."""
    by_queue: dict[str, list[str]] = {}
    for path in listing.within(CONSUME_QUEUES):
        folder = path.rpartition("/")[0]
        if base_offset(path) is not None and folder.count("/") == 2:
            by_queue.setdefault(folder, []).append(path)
    return [path for paths in by_queue.values() for path in sorted(paths)[-2:]]
