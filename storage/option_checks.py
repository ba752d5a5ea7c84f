"""Checks of settings that several packages share."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any


def require_at_least(least: int, options: Any, names: Iterable[str] | None = None) -> None:
    """Check these fields of a dataclass, or all of them. Raises ValueError."""
    for name in names if names is not None else [field.name for field in fields(options)]:
        if getattr(options, name) < least:
            raise ValueError(f"{name} must be at least {least}, got {getattr(options, name)}")
