"""`escrowmq group reset`: shows what a reset of offsets does, and does it where that is wanted."""

import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TextIO

import msgspec

from cli.common import Exit, in_short, say
from cli.json_report import STDOUT, write_json
from escrowmq_client import Client, EscrowMQError, Retry
from escrowmq_client.models.groups import ResetResult

_To = Literal["earliest", "latest", "time", "offset"]
_PATIENCE_MS = 5_000  # of an operator, where the service does not answer


@dataclass(frozen=True)
class Target:
    """Where a group is to continue: at one of `at`, `to` and `offset`."""

    group: str
    topic: str
    at: datetime | None = None
    to: Literal["earliest", "latest"] | None = None
    offset: int | None = None
    queue_id: int | None = None


def run(
    target: Target, url: str, api_key: str | None, *, yes: bool, json_file: Path | None
) -> Exit:
    """The exit status."""
    try:
        with Client(url, api_key=api_key, retry=Retry(total_ms=_PATIENCE_MS)) as client:
            effect = _reset(client, target, dry_run=not yes)
    except (EscrowMQError, ValueError, OSError) as error:
        say(f"The group was not reset: {in_short(error)}")
        return Exit.NOT_CARRIED_OUT
    if json_file != STDOUT:
        show(effect, sys.stdout)
    write_json(
        json_file,
        {"group": target.group, "topic": target.topic, **msgspec.to_builtins(effect)},
    )
    if not yes:
        say("Nothing was changed. Repeat the command with --yes to do it.")
    return Exit.CLEAN


def show(effect: ResetResult, out: TextIO) -> None:
    """The offsets of each queue before and after, and what follows from it."""
    out.write(f"{'queue':>6} {'offset':>15} {'new offset':>15}\n")
    out.writelines(
        f"{one.queue_id:>6} {one.from_offset:>15} {one.to_offset:>15}\n" for one in effect.queues
    )
    out.write(f"{effect.note[:1].upper()}{effect.note[1:]}.\n")


def _reset(client: Client, target: Target, *, dry_run: bool) -> ResetResult:
    to: _To = "offset" if target.to is None else target.to
    if target.at is not None:
        to = "time"
    return client.reset_offsets(
        target.group,
        target.topic,
        to,
        at=target.at,
        offset=target.offset,
        queue_id=target.queue_id,
        dry_run=dry_run,
    )
