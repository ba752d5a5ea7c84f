"""A copy of a store that is opened once: what both directions of a hand-over have in common."""

import asyncio
import errno
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path, PurePath
from typing import NamedTuple, TypeVar

from app.services import Services
from app.settings import Settings
from app.store_moves.disk_space import Space, check_space, full_disk_is_named
from app.store_moves.geometry import Geometry, geometry_of
from app.store_moves.opened import opened
from app.store_moves.plan import Plan
from app.store_moves.store_folder import COMMIT_LOG, Listing, list_files, used_segments
from app.store_moves.transfer import Transferred, carry_out
from app.store_moves.work_folder import check_target
from storage.errors import LogOfDLedger, StorageError, UnknownFormat, UnreadableConfig
from storage.files.vfs import ReadOnlyVfs

T = TypeVar("T")
Note = Callable[[str, int, int], None]
"""(step, bytes done, bytes in all)"""
PlanOf = Callable[[Listing, list[str], str], Plan]
"""(files, used segments, first segment that is copied) -> plan"""


class StoreRefused(Exception):
    """The store cannot be handed over; `sentences` say why."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__(" ".join(sentences))
        self.sentences = sentences


class StoreDamaged(Exception):
    """The stored data is damaged; the sentence names the file of the source, and what helps."""


class Examined(NamedTuple):
    """A store's folder, looked at: its files, the segments that have data, the files' lengths."""

    root: Path
    listing: Listing
    used: list[str]
    geometry: Geometry


def check_ends(source: Path, target: Path, settings: Settings, *, with_sqlite: str) -> None:
    """Check that the target is free, apart from the source, and the registry is a file.
    `with_sqlite`: why it has to be.

    Raises TargetRefused, StoreRefused, OSError.
    """
    check_target(source, target)
    if settings.database_url:
        raise StoreRefused([f"ESCROWMQ_DATABASE_URL is set: {with_sqlite}"])


def examine(root: Path, obstacles: Callable[[Listing], list[str]]) -> Examined:
    """Raises StoreRefused, with each of the obstacles; OSError."""
    listing = list_files(root)
    geometry, problems = geometry_of(listing, partial(read_file, root))
    if sentences := [*obstacles(listing), *problems]:
        raise StoreRefused(sentences)
    return Examined(root, listing, used_segments(root, listing), geometry)


def make(
    examined: Examined,
    settings: Settings,
    plan_of: PlanOf,
    look: Callable[[Services], Awaitable[T]],
    note: Note,
    *,
    target: Path,
    takes_over_ours: bool,
) -> tuple[Transferred, Space, T]:
    """Fill the store of these settings with the files of another one, open it, and look at it.

    `target`: where the store goes in the end, or would go. `takes_over_ours`: as of Base.

    Where a start has to cut the log before its last segment, the segments from there on are copied,
    and it is opened again. Raises DiskFull, StoreDamaged, RegistryUnavailable, OSError.
    """
    settings = settings.model_copy(update={"local": examined.geometry.applied_to(settings.local)})
    folder, copied_from = settings.data_dir.parent, ""
    while True:
        plan = plan_of(examined.listing, examined.used, copied_from)
        space = check_space(examined.root, plan, target if target.exists() else target.parent)
        check_space(examined.root, plan, folder)
        with full_disk_is_named(folder, space.needed_bytes):
            settings.store_dir.mkdir(mode=0o700)
            done = carry_out(
                examined.root, settings.store_dir, plan, lambda at, of: note("copy", at, of)
            )
        try:
            with full_disk_is_named(folder, space.needed_bytes):
                found = asyncio.run(_look(settings, look, note, takes_over_ours=takes_over_ours))
            return done, space, found
        except OSError as error:
            segment = _linked_segment(error, plan)
            if segment is None:
                raise
            copied_from = segment
        except StorageError as error:
            raise StoreDamaged(_in_source(error, settings.store_dir, examined.root)) from error
        shutil.rmtree(settings.store_dir)


async def _look(
    settings: Settings,
    look: Callable[[Services], Awaitable[T]],
    note: Note,
    *,
    takes_over_ours: bool,
) -> T:
    def progress(at: int, of: int) -> None:
        note("read the log", at, of)

    async with opened(settings, progress, takes_over_ours=takes_over_ours) as services:
        return await look(services)


def _in_source(error: StorageError, copy: Path, root: Path) -> str:
    """The sentence about a damaged file of the copy, which is removed, as one about the source."""
    sentence = str(error).replace(str(copy), str(root))
    has_remedy = isinstance(error, UnknownFormat) and error.remedy
    if has_remedy or isinstance(error, UnreadableConfig | LogOfDLedger):
        return sentence
    option = getattr(error, "repair", "")
    return (
        f"{sentence}. Restore the file from a copy; or let `escrowmq store repair` change a copy "
        f"of the store (cp -a --sparse=always), "
        + (f"with {option}, " if option else "")
        + "and give that to --from"
    )


def _linked_segment(error: OSError, plan: Plan) -> str | None:
    """The segment of the source that the start would have written to."""
    if error.errno != errno.EBADF or not isinstance(error.filename, str):
        return None
    path = f"{COMMIT_LOG}/{PurePath(error.filename).name}"
    return path if path in plan.linked else None


def read_file(root: Path, path: str, at: int, length: int) -> bytes:
    """Bytes of a file of the store."""
    file = ReadOnlyVfs().open(root / path)
    try:
        return file.read(at, length)
    finally:
        file.close()
