"""`escrowmq replica status` and `promote`: read the note of a replica, and end its following."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec
import typer
from msgspec import UNSET

from app.fencing.others import others_of
from app.fencing.promotion import Heard, Quorum
from app.fencing.shared_registry import SharedRegistry
from app.observability.logs import configure_logging
from app.registry.registry_files import REGISTRY
from app.replicas.folder import NoteDamaged, read_promise
from app.replicas.promise import CannotPromote, LogPlace, Promise
from app.replicas.promotion import NoReplica, ReplicaState, claim_alone, promote, state_of
from app.settings import ConfigurationError, Settings, load, settings_file_of
from cli.common import Exit, in_short, say


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


def settings_of(data_dir: Path, config: Path | None) -> Settings:
    """Raises ConfigurationError."""
    configure_logging(level="error", readable=True, is_final=False)
    settings = load(config or settings_file_of(data_dir), data_dir=data_dir)
    if settings.replica.nodes and not settings.names.servers:
        raise ConfigurationError(
            "ESCROWMQ_REPLICA__NODES is set, so ESCROWMQ_NAMES__SERVERS must name the other "
            "machines: they promise to follow this one"
        )
    return settings


def warn_alone(settings: Settings) -> None:
    """Say that no other machine promises anything, where this one has promised something.

    Raises typer.Exit where its promise cannot be read, which is said.
    """
    try:
        promised = read_promise(settings.data_dir)
    except (OSError, NoteDamaged) as error:
        say(in_short(error))
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None
    if promised.node and not settings.replica.nodes:
        say(
            f"This machine has promised to follow {promised.node}, and ESCROWMQ_REPLICA__NODES is "
            "not set: no other machine is asked for its promise. See that none of them runs as the "
            "service"
        )


def show_others(settings: Settings, out: TextIO) -> None:
    """Ask the other nodes how far they are; nothing is changed. Raises OSError."""
    asyncio.run(_show(settings, out))


def carry_out(settings: Settings, *, accept_loss: bool) -> int:
    """Where the log ends. Raises StorageError, OSError; typer.Exit."""
    registry = _registry(settings)

    async def claim(place: LogPlace, promised: Promise) -> Promise:
        async with _others(settings) as quorum:
            heard = await quorum.ask()
            say(_table(heard))
            return await quorum.claim(place, promised, heard=heard)

    chosen = registry.claim(
        claim if settings.replica.nodes else claim_alone, accept_loss=accept_loss
    )
    try:
        return asyncio.run(promote(settings.data_dir, settings.local, chosen)).end
    except (NoReplica, NoteDamaged, CannotPromote) as error:
        say(str(error))
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None


def check_registry(settings: Settings, *, accept_loss: bool) -> None:
    """Raises typer.Exit where the registry says that another machine is alone, which is said."""
    if not settings.is_registry_shared and not (settings.data_dir / REGISTRY).exists():
        say(
            "This directory has no registry, and ESCROWMQ_DATABASE_URL is not set. If the service "
            "has its registry on PostgreSQL, set it: that says whether another machine is alone"
        )
    try:
        asyncio.run(_registry(settings).check(accept_loss=accept_loss))
    except CannotPromote as error:
        say(str(error))
        raise typer.Exit(Exit.NOT_CARRIED_OUT) from None


def _registry(settings: Settings) -> SharedRegistry:
    return SharedRegistry(settings.registry_url, settings.store_dir, settings.replica.node_name)


async def _show(settings: Settings, out: TextIO) -> None:
    async with _others(settings) as quorum:
        heard = await quorum.ask()
    out.write(f"{_table(heard)}\n{quorum.needed} of them must promise to follow it\n")


def _others(settings: Settings) -> AbstractAsyncContextManager[Quorum]:
    return others_of(settings.replica, settings.names, settings.api_keys)


def _table(heard: Sequence[Heard]) -> str:
    """A line for each of the other nodes."""
    return "\n".join(map(_line, heard))


def _line(heard: Heard) -> str:
    found = heard.answer
    if found is None:
        return f"{heard.url}  no answer: {heard.problem}"
    epoch = "unknown" if found.last_epoch is UNSET else found.last_epoch
    end = "unknown" if found.end_offset is UNSET else f"{found.end_offset:,}"
    promised = "" if found.promised_to is UNSET else f", promised to {found.promised_to}"
    return f"{heard.url}  {found.node}, {found.role}, log ends at {end} in epoch {epoch}{promised}"


def _time_text(time_ms: int) -> str:
    if not time_ms:
        return "never"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
