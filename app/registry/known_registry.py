"""The identity of the registry that a store was last used with, kept beside the store.

A store whose registry was deleted, emptied or exchanged would start with topics taken back from the
log, and without any of its groups, subscriptions, schedules and secrets, of which the log has no
copy. So a start compares the two.
"""

from pathlib import Path

from storage.files import durable
from storage.files.vfs import OsVfs

_NAME = "registry-id"


def is_another(store_dir: Path, identity: str) -> bool:
    """Was the store last used with a registry of another identity?

    False for a store that was used with none.
    """
    known = durable.read_whole(OsVfs(), store_dir / _NAME)
    return known is not None and known.strip() != identity.encode()


def last_of(store_dir: Path) -> str:
    """The identity of the registry that the store was last used with; empty if with none."""
    known = durable.read_whole(OsVfs(), store_dir / _NAME)
    return "" if known is None else known.decode("ascii", "replace").strip()


def remember(store_dir: Path, identity: str) -> None:
    """Durable on return."""
    if durable.read_whole(OsVfs(), store_dir / _NAME) != identity.encode():
        durable.replace(OsVfs(), store_dir / _NAME, identity.encode(), scratch=store_dir / "making")
