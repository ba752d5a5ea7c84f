"""Take over the store of a stopped broker: its files, what a first start does, and a report."""

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from app.services import Services
from app.settings import OWN_FILE, PREFIX, Settings
from app.store_moves import broker_findings
from app.store_moves.figures import carried
from app.store_moves.file_findings import file_findings
from app.store_moves.geometry import Geometry
from app.store_moves.obstacles import obstacles
from app.store_moves.opened_copy import Note, check_ends, examine, make
from app.store_moves.ownership import own
from app.store_moves.plan import plan_import
from app.store_moves.report import Carried, Finding, Report, found_only
from app.store_moves.store_folder import Listing
from app.store_moves.work_folder import finish, trial_folder, work_folder
from storage.message import OffsetRange, QueueId


def import_store(
    source: Path, target: Path, settings: Settings, *, dry_run: bool, note: Note
) -> Report:
    """`source`: the folder of a broker's store.

    Raises StoreRefused, TargetRefused, StoreDamaged, DiskFull, DirectoryInUse, StorageError,
    OSError.
    """
    begun = time.monotonic()
    check_ends(source, target, settings, with_sqlite=_WITH_SQLITE)
    with ExitStack() as stack:
        ownership = own(source, dry_run=dry_run)
        stack.callback(ownership.close)
        examined = examine(source, obstacles)
        folder = trial_folder(source, target) if dry_run else work_folder(target)
        work = stack.enter_context(folder)
        transferred, space, found = make(
            examined,
            settings.model_copy(update={"data_dir": work}),
            plan_import,
            partial(_look, examined.listing),
            note,
            target=target,
            takes_over_ours=True,
        )
        if not dry_run:
            write_settings(work, examined.geometry)
            # The store has the identity of its registry, without which a service does not open it.
            finish(work, target, first=["store"])
    return Report(
        report="store_import",
        source=str(source),
        target=str(target),
        dry_run=dry_run,
        seconds=round(time.monotonic() - begun, 3),
        **transferred._asdict(),
        **space._asdict(),
        settings=_variables(examined.geometry),
        carried=found.carried,
        not_kept=found.not_kept,
        twice=found.twice,
        advice=[*ownership.warnings, *found.harmless, *_advice(target, examined.geometry)],
    )


class _Found(NamedTuple):
    carried: Carried
    not_kept: list[Finding]
    twice: list[Finding]
    harmless: list[str]


async def _look(listing: Listing, services: Services) -> _Found:
    bounds = {
        queue: OffsetRange(*services.store.bounds(queue))
        for topic, count in (await services.store.topics()).items()
        for queue in (QueueId(topic, number) for number in range(count))
    }
    taken = services.take_over.report
    notes = [] if taken is None else taken.notes
    groups = [group.name for group in services.consumer_groups.all()]
    files = file_findings(services.take_over.files, bounds, groups)
    return _Found(
        await carried(services),
        found_only([*files.not_kept, *broker_findings.not_kept(notes, listing, bounds)]),
        found_only([*files.twice, *broker_findings.twice(listing, groups)]),
        files.harmless,
    )


def _variables(geometry: Geometry) -> dict[str, int]:
    options = geometry.options()
    return {f"{PREFIX}LOCAL__{name.upper()}": value for name, value in options.items()}


def write_settings(work: Path, geometry: Geometry) -> None:
    """Write the file of settings in a data directory, if lengths are not the defaults."""
    if options := geometry.options():
        rows = [f"{name} = {value}\n" for name, value in options.items()]
        head = "# The lengths of the files of store/, as the broker has made them.\n[local]\n"
        (work / OWN_FILE).write_text(head + "".join(rows), "utf-8")


def _advice(target: Path, geometry: Geometry) -> list[str]:
    sentences = [f"Start the service with: escrowmq serve --data-dir {quote(str(target))}"]
    if geometry.options():
        sentences.append(f"It reads {target / OWN_FILE}, which has these settings:")
    return sentences


_WITH_SQLITE = (
    "a store is taken over with a registry of its own in SQLite. For a registry on a server, put "
    "the broker's folder under <data-dir>/store and start the service"
)
