"""How the service makes reports of audits."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator

from app.environment import from_json
from storage.option_checks import require_at_least


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Reports of audits, each made by a process beside the service, one at a time."""

    # What is run instead of this installation's own `escrowmq`, with `audit run ...` behind it:
    # spark-submit, for one.
    program: Annotated[tuple[str, ...], BeforeValidator(from_json)] = ()
    kept_reports: int = 20  # that have ended; the oldest go
    max_queued: int = 10  # that wait for their turn
    timeout_ms: int = 7_200_000  # a run that takes longer is ended, and has failed
    driver_memory: str = "1g"  # of the Java process that drives Spark

    def __post_init__(self) -> None:
        require_at_least(1, self, ("kept_reports", "max_queued", "timeout_ms"))
