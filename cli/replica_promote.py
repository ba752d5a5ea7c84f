"""`escrowmq replica status` and `promote`: read the note of a replica, and end its following."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec
import typer

from app.observability import configure_logging
from app.replicas.folder import NoteDamaged
from app.replicas.promotion import NoReplica, ReplicaState, promote, state_of
from app.settings import load, settings_file_of
from cli.audit_common import Exit, in_short, say


def state(data_dir: Path) -> ReplicaState:
    """Raises typer.Exit where there is none, which is said."""
    try:
        return state_of(data_dir)
    except (NoReplica, OSError, NoteDamaged) as error:
        say(in_short(error))
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None


def as_json(found: ReplicaState) -> Any:
    return msgspec.to_builtins(found)


def show(found: ReplicaState, out: TextIO) -> None:
    rows = {
        "replica": found.data_dir,
        "primary": found.primary or "not known yet",
        "last heard of": _time_text(found.heard_at_ms),
        "primary's log ended at": f"{found.primary_end:,}",
        "own log ends at": f"{found.end:,}",
        "behind by": f"{found.behind_bytes:,} bytes, and what the primary took after that time",
    }
    width = max(map(len, rows))
    out.writelines(f"{name:<{width}}  {value}\n" for name, value in rows.items())


def carry_out(data_dir: Path, config: Path | None) -> int:
    """Where the log ends. Raises ConfigurationError, StorageError, OSError; typer.Exit."""
    configure_logging(level="error", readable=True, is_final=False)
    settings = load(config or settings_file_of(data_dir), data_dir=data_dir)
    try:
        return asyncio.run(promote(data_dir, settings.local))
    except NoReplica as error:
        say(str(error))
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None


def _time_text(time_ms: int) -> str:
    if not time_ms:
        return "never"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
