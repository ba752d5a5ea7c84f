"""How a producer is asked "did you commit?" when it does not come for its checks itself."""

from enum import StrEnum
from typing import NamedTuple, Protocol

from txn.open_checks import LeasedCheck
from txn.states import TxnEvent


class Failure(StrEnum):
    """Why a try gave no answer. Neither is ever counted, nor read as a decision."""

    UNREACHABLE = "unreachable"
    INVALID = "invalid"  # something came back, and it was no answer


class Answered(NamedTuple):
    decision: TxnEvent
    latency_ms: int = 0
    recheck_after_ms: int | None = None
    evidence: dict[str, str] | None = None


class Failed(NamedTuple):
    why: Failure
    detail: str
    latency_ms: int = 0
    retry_after_ms: int | None = None  # it asked to be left alone for so long
    is_timeout: bool = False
    is_gone: bool = False  # it asked never to be asked again
    blames_host: bool = False  # other checks would fare no better there


class Route(NamedTuple):
    """Where the checks of a group go, and how many may be under way to there."""

    host: str
    concurrency: int


class ProducerClient(Protocol):
    def route(self, group: str) -> Route | None:
        """None where the group is not asked."""

    async def ask(self, group: str, check: LeasedCheck) -> Answered | Failed:
        """One try, which ends by itself."""

    async def disable(self, group: str, host: str) -> None:
        """Its endpoint is gone: ask it no more."""
