"""Give the store of a stopped service to a broker: its files as of now, and a report."""

import os
import shutil
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from app.registry.topics import MIB
from app.services import Services
from app.settings import Settings
from app.store_moves import export_findings
from app.store_moves.figures import carried
from app.store_moves.geometry import Geometry, broker_settings, geometry_of
from app.store_moves.largest_record import largest_record
from app.store_moves.opened_copy import (
    Note,
    StoreRefused,
    check_ends,
    examine,
    make,
    read_file,
)
from app.store_moves.ownership import own
from app.store_moves.plan import of_escrowmq_alone, plan_export
from app.store_moves.report import Carried, Finding, Report, found_only
from app.store_moves.store_folder import COMMIT_LOG, Listing, list_files, used_segments
from app.store_moves.transfer import copy
from app.store_moves.work_folder import finish, trial_folder, unfinished_in, work_folder

_REGISTRY = "registry.db"
_REGISTRY_FILES = (_REGISTRY, f"{_REGISTRY}-wal")
_BROKERS_HOURS = 72
_BROKERS_MESSAGE_BYTES = 4 * MIB
_CHECK_MAX = 100_000


def export_store(
    source: Path, target: Path, settings: Settings, *, dry_run: bool, note: Note
) -> Report:
    """`source`: a data directory.

    Raises StoreRefused, TargetRefused, StoreDamaged, DiskFull, DirectoryInUse, StorageError,
    OSError.
    """
    begun = time.monotonic()
    check_ends(source, target, settings, with_sqlite=_WITH_SQLITE)
    if reason := unfinished_in(source):
        raise StoreRefused([reason])
    if not (source / _REGISTRY).is_file() or not (source / "store" / COMMIT_LOG).is_dir():
        raise StoreRefused([f"{source} is no data directory: it has no store/ and {_REGISTRY}"])
    with ExitStack() as stack:
        ownership = own(source / "store", dry_run=dry_run)
        stack.callback(ownership.close)
        examined = examine(source / "store", _obstacles)
        folder = trial_folder(source, target) if dry_run else work_folder(target)
        work = stack.enter_context(folder)
        for name in _REGISTRY_FILES:
            if (source / name).exists():
                for _ in copy(source / name, work / name, (source / name).stat().st_size):
                    pass
        transferred, space, found = make(
            examined,
            settings.model_copy(update={"data_dir": work}),
            plan_export,
            _look,
            note,
            target=target,
            takes_over_ours=False,
        )
        store = work / "store"
        _leave_to_broker(store)
        geometry = _geometry(store)
        largest = largest_record(store, list_files(store))
        if not dry_run:
            names = sorted(set(os.listdir(store)) - {COMMIT_LOG})
            finish(store, target, first=names)
    for_broker = _settings(geometry, largest, found)
    return Report(
        report="store_export",
        source=str(source),
        target=str(target),
        dry_run=dry_run,
        seconds=round(time.monotonic() - begun, 3),
        **transferred._asdict(),
        **space._asdict(),
        settings=for_broker,
        carried=found.carried,
        not_kept=found.not_kept,
        twice=found.twice,
        advice=[*ownership.warnings, *_advice(target, found, has_settings=bool(for_broker))],
    )


class _Found(NamedTuple):
    carried: Carried
    not_kept: list[Finding]
    twice: list[Finding]
    retention_hours: int


async def _look(services: Services) -> _Found:
    schedules = await services.schedules.hand_over(most=sys.maxsize)
    return _Found(
        await carried(services),
        found_only(await export_findings.not_kept(services, schedules)),
        found_only(await export_findings.twice(services, schedules)),
        export_findings.reserved_hours(services.topics.longest_retention_ms()),
    )


def _obstacles(listing: Listing) -> list[str]:
    if not listing.others:
        return []
    return [f"{', '.join(listing.others[:5])}: neither a file nor a folder, which is not followed"]


def _leave_to_broker(store: Path) -> None:
    """Remove what a broker has no use for, and the segments that have nothing in them."""
    listing = list_files(store)
    used = set(used_segments(store, listing))
    for path in of_escrowmq_alone(listing):
        (store / path).unlink()
    for path in listing.segments():
        if path not in used:
            (store / path).unlink()
    for folder in ("snapshots", "timers", "making"):
        shutil.rmtree(store / folder, ignore_errors=True)


def _geometry(store: Path) -> Geometry:
    return geometry_of(list_files(store), partial(read_file, store))[0]


def _settings(geometry: Geometry, largest: int, found: _Found) -> dict[str, int]:
    """Settings of the broker that differ from its defaults."""
    settings = broker_settings(geometry)
    if largest > _BROKERS_MESSAGE_BYTES:
        settings["maxMessageSize"] = -(-largest // MIB) * MIB
    if found.retention_hours > _BROKERS_HOURS:
        settings["fileReservedTime"] = found.retention_hours
    if found.carried.transactions_undecided:
        settings["transactionCheckMax"] = _CHECK_MAX
    return settings


def _advice(target: Path, found: _Found, *, has_settings: bool) -> list[str]:
    paths = f"storePathRootDir={target}", f"storePathCommitLog={target / COMMIT_LOG}"
    sentences = [
        f"Start the broker with {paths[0]}, {paths[1]}, and these settings:"
        if has_settings
        else f"Start the broker with {paths[0]} and {paths[1]}"
    ]
    if found.carried.transactions_undecided:
        sentences.insert(
            0,
            "A broker discards a transaction that is undecided after transactionCheckMax checks, "
            "or whose begin is older than fileReservedTime",
        )
    return sentences


_WITH_SQLITE = "only a data directory with its registry in SQLite is exported"
