"""Scope and result of an audit, as plain values."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The transactions to audit: those begun in [begun_from, begun_to), of one producer group.
    None: no limit.
    """

    begun_from: datetime | None = None
    begun_to: datetime | None = None
    producer_group: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`report` is what is written as JSON, but for its `run` part; `counts` how often each of
    FINDINGS was found.
    """

    report: dict[str, Any]
    counts: dict[str, int]
    is_balanced: bool
