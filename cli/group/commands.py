"""`escrowmq group`: what an operator does with the consumer groups of a running service."""

from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.json_report import check_json
from cli.service_options import check_url

app = typer.Typer(
    name="group",
    help="Manage the consumer groups of a running service.",
    no_args_is_help=True,
)

_LOCAL = "http://127.0.0.1:8080"


def _parse_time(text: str) -> datetime:
    """Raises BadParameter where it is no date, and no time with its zone."""
    try:
        return datetime.combine(date.fromisoformat(text), time(tzinfo=UTC))
    except ValueError:
        pass
    try:
        made = datetime.fromisoformat(text)
    except ValueError:
        made = None
    if made is None or made.tzinfo is None:
        raise typer.BadParameter(f"{text} is no time such as 2026-03-01T10:15:00Z, and no date")
    return made


@app.callback()
def group() -> None:
    """Manage the consumer groups of a running service."""


@app.command()
def reset(
    name: Annotated[str, typer.Argument(help="Name of the consumer group.", metavar="GROUP")],
    topic: Annotated[
        str, typer.Option(help="Topic in which the group is moved.", show_default=False)
    ],
    at: Annotated[
        datetime | None,
        typer.Option(
            help="Continue at the first message that was stored then or later: a time with its "
            "zone, or a date (UTC).",
            parser=_parse_time,
            metavar="TIME",
        ),
    ] = None,
    to: Annotated[
        Literal["earliest", "latest"] | None,
        typer.Option(help="Continue at this end of each queue."),
    ] = None,
    offset: Annotated[
        int | None, typer.Option(help="Continue at this offset of --queue-id.", min=0)
    ] = None,
    queue_id: Annotated[
        int | None, typer.Option(help="Only this queue; all queues of the topic unless set.", min=0)
    ] = None,
    url: Annotated[
        str, typer.Option("--url", envvar="ESCROWMQ_URL", help="URL of the service.", metavar="URL")
    ] = _LOCAL,
    api_key: Annotated[
        str | None, typer.Option(envvar="ESCROWMQ_API_KEY", help="API key of the service.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without, only show the effect.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Write the effect to this file; -: to the standard output alone."
        ),
    ] = None,
) -> None:
    """Move a consumer group in a topic, to a time, an end of its queues, or an offset.

    Without --yes nothing is changed: it shows the offsets, and how many messages would be delivered
    again or skipped. Leases and retries of the group in the topic end. A group with members is
    refused while they hold queues.

    Exit status: 0 done, or shown; 2 wrong usage; 3 the command failed, or the service refused it.
    """
    check_json(json_file)
    if [at, to, offset].count(None) != 2:
        raise typer.BadParameter("give one of --at, --to and --offset")
    if offset is not None and queue_id is None:
        raise typer.BadParameter("an offset needs --queue-id", param_hint="--queue-id")
    check_url(url, "--url")
    from cli.group import reset as group_reset

    target = group_reset.Target(name, topic, at=at, to=to, offset=offset, queue_id=queue_id)
    raise typer.Exit(group_reset.run(target, url, api_key, yes=yes, json_file=json_file))
