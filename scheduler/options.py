"""Options of delayed delivery."""

from dataclasses import dataclass

from storage.option_checks import require_at_least


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    near_ms: int = 60_000  # what is due so soon is held in memory,
    near_kept: int = 50_000  # but at most so many: a few hundred bytes each
    finished_kept: int = 20_000  # delivered and cancelled ones that are listed
    sweep_interval_ms: int = 100
    snapshot_interval_ms: int = 30_000
    catch_up_after_ms: int = 5_000  # what is later than this is a backlog,
    catch_up_per_second: int = 5_000  # and delivered at this rate, beside what is due now
    max_cron: int = 10_000  # cron schedules, all of them in memory; more are refused
    max_cron_per_topic: int = 1_000
    # an occurrence that is later than this was missed: its schedule says what becomes of it
    cron_grace_ms: int = 60_000

    def __post_init__(self) -> None:
        require_at_least(1, self)
