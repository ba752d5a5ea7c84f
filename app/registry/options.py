"""How many topics, queues and groups clients may create."""

from dataclasses import dataclass

from storage.errors import LimitReached
from storage.option_checks import require_at_least


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """Limits on what clients create. Lowering one removes nothing that exists."""

    max_topics: int = 10_000
    # of all topics, about 500 bytes each; those of deleted topics count whose offsets are
    # remembered
    max_queues: int = 65_536
    max_groups: int = 10_000
    max_producer_groups: int = 10_000

    def __post_init__(self) -> None:
        require_at_least(1, self)


def check_limit(count: int, limit: int, what: str, *, pointer: str) -> None:
    """Raise LimitReached where there would be more than the limit."""
    if count > limit:
        raise LimitReached(f"at most {limit} {what} may exist", pointer=pointer)
