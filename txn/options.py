"""Options of transactions."""

from dataclasses import dataclass

from storage.option_checks import require_at_least


@dataclass(frozen=True, kw_only=True)
class TransactionOptions:
    max_open: int = 1_000_000  # undecided transactions at once; more are refused with 429
    decided_kept: int = 500_000  # in memory, to recognise a repeated decision or idempotency key
    dedup_window_ms: int = 86_400_000  # how long an idempotency key of begin counts
    sweep_interval_ms: int = 100
    snapshot_interval_ms: int = 10_000

    def __post_init__(self) -> None:
        require_at_least(
            1,
            self,
            (
                "max_open",
                "decided_kept",
                "dedup_window_ms",
                "sweep_interval_ms",
                "snapshot_interval_ms",
            ),
        )
