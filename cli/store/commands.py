"""`escrowmq store`: look at the files of a store and mend them. Needs neither Spark nor Java."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.common import Exit, in_short, say
from cli.json_report import STDOUT, check_json, write_json
from cli.service_options import check_url, folder_of_option, not_empty

app = typer.Typer(
    name="store",
    help="Verify, inspect, repair, back up and restore the files of a store.",
    no_args_is_help=True,
)

Directory = Annotated[
    Path,
    typer.Argument(
        help="The store's folder, which holds commitlog/, or the data directory around it.",
        metavar="DIR",
    ),
]


Json = Annotated[
    Path | None,
    typer.Option("--json", help="Write the report to this file; -: to the standard output alone."),
]


@app.callback()
def store() -> None:
    """Verify, inspect, repair, back up and restore the files of a store."""


@app.command()
def verify(
    directory: Directory,
    json_file: Json = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print no progress and no summary.")
    ] = False,
) -> None:
    """Verify every file of a store, running or stopped. Changes nothing and takes no lock.

    Exit status: 0 clean; 1 findings; 2 wrong usage; 3 the command failed.
    """
    check_json(json_file)
    root = store_folder(directory)
    from cli.store import verify as store_verify
    from storage.errors import MessagingError

    try:
        report = store_verify.run(root, shows=not quiet)
    except (OSError, MessagingError) as error:
        say(f"The store could not be verified: {in_short(error)}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
    if not quiet and json_file != STDOUT:
        store_verify.show(report, sys.stdout)
    write_json(json_file, report)
    raise typer.Exit(Exit.FINDINGS if report["findings"] else Exit.CLEAN)


@app.command()
def repair(
    directory: Directory,
    cut_log_at: Annotated[
        int | None,
        typer.Option(
            help="End the log at this log offset; all messages behind it are lost.",
            metavar="OFFSET",
            min=0,
        ),
    ] = None,
    blank_unit: Annotated[
        int | None,
        typer.Option(
            help=(
                "Remove the damage that begins at this log offset; whole records of the unit stay."
            ),
            metavar="OFFSET",
            min=0,
        ),
    ] = None,
    accept_beginning: Annotated[
        bool, typer.Option("--accept-beginning", help="Let the log begin at its first segment.")
    ] = False,
    rebuild_derived: Annotated[
        bool,
        typer.Option(
            "--rebuild-derived",
            help="Move queues, index, snapshots and timers aside; the next start rebuilds them.",
        ),
    ] = False,
    set_aside: Annotated[
        str | None,
        typer.Option(help="Move a file that is not a segment out of commitlog/.", metavar="NAME"),
    ] = None,
    fit_segment: Annotated[
        str | None,
        typer.Option(
            help="Restore the full length of a segment, filled with zeros.", metavar="NAME"
        ),
    ] = None,
    replace_unreadable: Annotated[
        str | None,
        typer.Option(
            help="Replace a segment that cannot be read as a whole by a copy; the rest are zeros.",
            metavar="NAME",
        ),
    ] = None,
    json_file: Json = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print no progress and no summary.")
    ] = False,
) -> None:
    """Make one repair of a stopped store. Without an option: list the repairs that are needed, and
    change nothing.

    Files are copied to repair-<time>/ beside commitlog/ before they are changed.

    Exit status: 0 nothing to repair, or repaired; 1 a repair is needed; 2 wrong usage; 3 the
    command failed; 73 a process is using the store.
    """
    given = {
        "cut_log_at": cut_log_at,
        "blank_unit": blank_unit,
        "accept_beginning": accept_beginning or None,
        "rebuild_derived": rebuild_derived or None,
        "set_aside": set_aside,
        "fit_segment": fit_segment,
        "replace_unreadable": replace_unreadable,
    }
    wanted = [(name, value) for name, value in given.items() if value is not None]
    if len(wanted) > 1:
        raise typer.BadParameter("one repair at a time")
    check_json(json_file)
    root = store_folder(directory)
    from app.life import exit_codes
    from cli.store import repair as store_repair
    from storage.errors import DirectoryInUse, MessagingError
    from storage.local.repair.repair_report import RepairRefused

    try:
        report = store_repair.run(root, *(wanted[0] if wanted else (None, None)), shows=not quiet)
    except DirectoryInUse as error:
        say(f"Stop the service first: {error}")
        raise typer.Exit(exit_codes.DIRECTORY_IN_USE) from None
    except (OSError, MessagingError, RepairRefused) as error:
        say(f"The store could not be repaired: {in_short(error)}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
    if not quiet and json_file != STDOUT:
        store_repair.show(report, sys.stdout)
    write_json(json_file, report)
    raise typer.Exit(Exit.FINDINGS if report.get("findings") else Exit.CLEAN)


@app.command()
def segments(
    directory: Directory,
    json_file: Json = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no table.")] = False,
) -> None:
    """List the segments of the log: their records, times and sizes, and the damage in them. Takes
    no lock.

    Exit status: 0 listed; 2 wrong usage; 3 the command failed.
    """
    check_json(json_file)
    root = store_folder(directory)
    from cli.store import segments as store_segments
    from storage.errors import MessagingError

    try:
        rows = store_segments.rows(root)
    except (OSError, MessagingError) as error:
        say(f"The segments could not be listed: {in_short(error)}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
    if not quiet and json_file != STDOUT:
        store_segments.show(rows, sys.stdout)
    write_json(json_file, {"store": str(root), "segments": rows})


@app.command()
def dump(
    file: Annotated[
        Path,
        typer.Argument(
            help="A stored file by its path in the store.",
            exists=True,
            dir_okay=False,
            metavar="FILE",
        ),
    ],
) -> None:
    """Print a stored file as text: a segment, a queue, index, timer or snapshot file, or the
    checkpoint.

    Damage in it is printed, too. Exit status: 0 printed; 2 wrong usage, or no file of a store.
    """
    from cli.store import dump as command

    command.run(file)


Source = Annotated[
    Path, typer.Option("--from", help="The store's folder.", metavar="DIR", show_default=False)
]
Target = Annotated[
    Path,
    typer.Option(
        "--to",
        help="A folder that is empty or does not exist.",
        metavar="DIR",
        show_default=False,
        parser=folder_of_option,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Report what would be done, and change nothing.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Print no progress and no report, only errors.")
]


@app.command("import")
def import_(
    source: Source,
    target: Target,
    dry_run: DryRun = False,
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Take over the store of a stopped RocketMQ 5 broker as a data directory.

    --from is the folder that the broker's setting storePathRootDir names. Sealed segments of the
    log are linked, or copied to another file system; the broker's files stay as they are. The
    report says what carries over, what does not, and what may be seen twice.

    Exit status: 0 all is kept; 1 done, and something is not kept, or may be seen twice; 2 wrong
    usage; 3 the command failed; 65 the stored data is damaged; 73 a broker or service is using the
    store; 74 the disk is full; 75 the registry could not be read; 77 a permission is missing, or
    a file system is read-only; 78 refused, and nothing was done: the store, the folder of --to or
    the settings cannot be used; 130 stopped.
    """
    check_json(json_file)
    from cli.store import move as store_move

    raise typer.Exit(
        store_move.run("import", source, target, dry_run=dry_run, json_file=json_file, quiet=quiet)
    )


@app.command()
def export(
    source: Annotated[
        Path,
        typer.Option("--from", help="A data directory.", metavar="DIR", show_default=False),
    ],
    target: Target,
    dry_run: DryRun = False,
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Make a store for a RocketMQ 5.3.3 broker of a stopped service's data directory.

    --to becomes the folder that the broker's setting storePathRootDir names. Sealed segments of the
    log are linked, or copied to another file system; the data directory stays as it is. The report
    says what carries over, what does not, what may be seen twice, and the settings of the broker.

    Exit status: 0 all is kept; 1 done, and something is not kept, or may be seen twice; 2 wrong
    usage; 3 the command failed; 65 the stored data is damaged; 73 a broker or service is using the
    store; 74 the disk is full; 75 the registry could not be read; 77 a permission is missing, or
    a file system is read-only; 78 refused, and nothing was done: the store, the folder of --to or
    the settings cannot be used; 130 stopped.
    """
    check_json(json_file)
    from cli.store import move as store_move

    raise typer.Exit(
        store_move.run("export", source, target, dry_run=dry_run, json_file=json_file, quiet=quiet)
    )


Backups = Annotated[
    str,
    typer.Argument(
        help="The folder of the backups: a path, or a URI such as s3://BUCKET/PATH.",
        metavar="DIR|URI",
    ),
]


@app.command()
def backup(
    source: Annotated[
        Path,
        typer.Option("--from", help="A data directory.", metavar="DIR", show_default=False),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            help="The folder of the backups: a path, or a URI such as s3://BUCKET/PATH.",
            metavar="DIR|URI",
            show_default=False,
            parser=not_empty,
        ),
    ],
    keep: Annotated[
        int | None,
        typer.Option(help="Keep this many of the newest backups, and remove the others.", min=1),
    ] = None,
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Back up a data directory while its service runs, or when it is stopped.

    The backup has the registry, and the log up to where it is on disk. The first one copies all of
    the log, each later one what is new. Each copied byte is read back, and each unit of the log
    verified by its checksum. A run that was stopped is continued by the next one.

    Exit status: 0 done; 1 done, and the log is damaged; 2 wrong usage; 3 the command failed; 65 a
    backup in the folder or the stored data is damaged; 73 another run writes to the folder; 74 a
    disk is full; 75 the registry could not be read; 77 a permission is missing; 78 refused: not a
    data directory of a service, or the folder has backups of another log; 130 stopped.
    """
    check_json(json_file)
    from cli.store import backup as store_backup

    raise typer.Exit(
        store_backup.backup(source, target, keep=keep, json_file=json_file, quiet=quiet)
    )


@app.command()
def restore(
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="The folder of the backups: a path, or a URI such as s3://BUCKET/PATH.",
            metavar="DIR|URI",
            show_default=False,
            parser=not_empty,
        ),
    ],
    target: Target,
    until_offset: Annotated[
        int | None,
        typer.Option(help="Restore the log up to this log offset.", metavar="OFFSET", min=0),
    ] = None,
    until_time: Annotated[
        str | None,
        typer.Option(
            help="Restore what was stored up to this time, such as 2026-01-31T12:00:00Z.",
            metavar="TIME",
        ),
    ] = None,
    json_file: Json = None,
    quiet: Quiet = False,
) -> None:
    """Make a data directory of the newest backup, or as it was at a point between two backups.

    Each byte is verified, queues and index are rebuilt from the log, and the result is verified
    as by `store verify`. Start the service with --to as its data directory.

    Exit status: 0 restored; 1 restored, and the verification has findings; 2 wrong usage; 3 the
    command failed; 65 the backup is damaged, or its log is, and has to be repaired; 74 the disk is
    full; 77 a permission is missing; 78 refused, and nothing was done: the point is not in the
    backups, or the folder of --to cannot be used; 130 stopped.
    """
    if until_offset is not None and until_time is not None:
        raise typer.BadParameter("either --until-offset or --until-time")
    time_ms = None if until_time is None else _wall_ms(until_time)
    check_json(json_file)
    from app.backup.point import Point
    from cli.store import backup as store_backup

    point = Point(until_offset, time_ms)
    raise typer.Exit(store_backup.restored(source, target, point, json_file=json_file, quiet=quiet))


def _wall_ms(text: str) -> int:
    from app.encoding.codec import parse_time
    from storage.errors import MessagingError

    try:
        return parse_time(text, "")
    except MessagingError as error:
        raise typer.BadParameter(str(error), param_hint="--until-time") from None


@app.command()
def backups(where: Backups, json_file: Json = None, quiet: Quiet = False) -> None:
    """List the backups in a folder, oldest first, with the log offsets and times they go to.

    Exit status: 0 listed; 2 wrong usage; 3 the command failed; 65 a backup is damaged.
    """
    check_json(json_file)
    from cli.store import backup as store_backup

    raise typer.Exit(store_backup.listed(where, json_file=json_file, quiet=quiet))


@app.command("recovery-report")
def recovery_report(
    directory: Annotated[
        Path | None,
        typer.Argument(help="The store's folder, or the data directory.", metavar="DIR"),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="URL of a running service, instead of DIR.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="ESCROWMQ_API_KEY", help="API key for --url.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Report what the last 20 starts of a store have recovered, newest first.

    Exit status: 0 reported; 2 wrong usage; 3 the command failed.
    """
    if (directory is None) == (url is None):
        raise typer.BadParameter("either DIR or --url")
    if url is not None:
        check_url(url, "--url", is_one=True)
    check_json(json_file)
    from msgspec import to_builtins

    from cli.store import recovery as store_recovery

    try:
        reports = (
            store_recovery.of_store(store_folder(directory))
            if directory
            else store_recovery.of_service(str(url), api_key)
        )
    except (OSError, ValueError) as error:
        say(f"There is no report: {in_short(error)}")
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
    if json_file != STDOUT:
        store_recovery.show(reports, sys.stdout)
    write_json(json_file, to_builtins(reports))


def store_folder(directory: Path) -> Path:
    """The folder that holds commitlog/. Raises typer.BadParameter where there is none, or a run
    that was killed has left it half made.
    """
    from app.store_moves.work_folder import unfinished_in

    for folder in (directory, directory / "store"):
        if reason := unfinished_in(folder):
            raise typer.BadParameter(reason, param_hint="DIR")
    for folder in (directory, directory / "store"):
        if (folder / "commitlog").is_dir():
            return folder
    raise typer.BadParameter(f"{directory} holds no commitlog/", param_hint="DIR")
