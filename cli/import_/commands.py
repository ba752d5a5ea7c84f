"""`escrowmq import`: what is taken from a broker while it, or the service, runs."""

from pathlib import Path
from typing import Annotated

import typer

from cli.json_report import check_json
from cli.service_options import check_url, folder_of_option

app = typer.Typer(
    name="import",
    help="Move from a RocketMQ broker while it, or the service, runs.",
    no_args_is_help=True,
)


@app.callback()
def import_() -> None:
    """Move from a RocketMQ broker while it, or the service, runs."""


@app.command()
def follow(
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="Where the broker answers its clients: its brokerIP1 and listenPort.",
            metavar="HOST:PORT",
            show_default=False,
        ),
    ],
    to: Annotated[
        Path,
        typer.Option(
            help="Folder of the copy: empty, or one that this command has begun.",
            metavar="FOLDER",
            show_default=False,
            parser=folder_of_option,
        ),
    ],
    ha_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the broker for its slaves; unless set, its haListenPort.",
            min=1,
            max=65_535,
        ),
    ] = None,
    take_over: Annotated[
        Path | None,
        typer.Option(
            help="End when the broker has had nothing new for five seconds and all of it is here, "
            "and import the copy into this data directory.",
            metavar="DATA_DIR",
            parser=folder_of_option,
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="With --take-over: write the report of the import to this file; -: to the "
            "standard output alone.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no report.")] = False,
) -> None:
    """Follow a running RocketMQ broker: copy its log as a slave does, until it is taken over.

    The copy is made while producers and consumers work. To move, stop both, run the command with
    --take-over, and stop the broker when it says so: what is left to copy then are seconds. It
    fetches topics, groups and offsets, and imports as `escrowmq store import` does, with its report
    and its exit status.

    Without --take-over it follows until it is stopped. It can be stopped, killed and started at any
    time, and comes back to a broker that restarts. Nothing is written at the broker. What it has
    copied, it has on disk within a second.

    Exit status: with --take-over that of `escrowmq store import`; 2 wrong usage; 3 the broker does
    not answer; 73 another process has the folder; 74 the disk failed or is full; 78 refused: the
    broker's log is another one, has dropped what the copy lacks, or cannot be followed; 130
    stopped.
    """
    check_json(json_file)
    if json_file is not None and take_over is None:
        raise typer.BadParameter("it is the report of --take-over", param_hint="--json")
    from app.replicas.options import split_address

    try:
        split_address(source)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from None
    from cli.import_ import follow as import_follow

    raise typer.Exit(
        import_follow.run(
            source, to, ha_port=ha_port, take_over=take_over, json_file=json_file, quiet=quiet
        )
    )


@app.command()
def offsets(
    source: Annotated[
        Path,
        typer.Option(
            "--from",
            help="The broker's store folder, best; or its file consumerOffset.json alone, with "
            "which nothing is compared.",
            metavar="PATH",
            show_default=False,
        ),
    ],
    to: Annotated[str, typer.Option(help="URL of the service.", metavar="URL", show_default=False)],
    group: Annotated[
        list[str] | None,
        typer.Option(help="Only this consumer group; may be repeated.", show_default=False),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="ESCROWMQ_API_KEY", help="API key of the service.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would be set, and change nothing.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Write the report to this file; -: to the standard output alone."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no report.")] = False,
) -> None:
    """Set the offsets of consumer groups to those that a running RocketMQ broker has now.

    For a move by dual consumption: the service has a copy of the broker's queues (`escrowmq store
    import`), producers send to the service from then on, and the consumers first consume the rest
    at the broker. Then this command lets their groups continue at the service behind what they
    consumed at the broker.

    An offset is set as far as the queue has the same messages at both sides: a broker stores
    transactions and delayed messages after the import, too. Behind that the group continues at the
    first message that differs; messages may come twice, and none is skipped. An offset in a queue
    with nothing left to compare is not set. With the file alone nothing is compared, and offsets
    that name other messages skip as many.

    A group that does not exist is created. It is subscribed to the topics that it has offsets in,
    as is a group without subscriptions; one that has some keeps them. A group only advances.
    Offsets before the begin of a queue are set to the begin, offsets beyond the end to the end. A
    broker writes its file every 5 s. Stop the group's consumers at both sides first: a group's
    leases end when its offset is set.

    Exit status: 0 all is set; 1 a group, topic or queue does not exist, an offset is beyond the end
    of its queue, behind other messages or could not be compared, or retries or dead letters are
    only at the broker; 2 wrong usage; 3 the command failed.
    """
    check_json(json_file)
    check_url(to, "--to")
    from cli.import_ import offsets as import_offsets

    raise typer.Exit(
        import_offsets.run(
            source, to, group or [], api_key, dry_run=dry_run, json_file=json_file, quiet=quiet
        )
    )
