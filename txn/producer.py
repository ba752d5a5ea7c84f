"""Producers that are sent checks, rather than receive them."""

from enum import StrEnum
from typing import NamedTuple, Protocol

from txn.open_checks import LeasedCheck
from txn.states import TxnEvent


class Failure(StrEnum):
    """Why a try has no answer. It is never counted as an answer, nor read as a decision."""

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
    """The endpoint of the checks of a group, and the maximum number in progress there."""

    host: str
    concurrency: int


class ProducerClient(Protocol):
    def route(self, group: str) -> Route | None:
        """The route of the group; None if checks are not sent."""

    async def ask(self, group: str, check: LeasedCheck) -> Answered | Failed:
        """Try once to send a check, within a timeout."""

    async def disable(self, group: str, host: str) -> None:
        """Stop sending to an endpoint that is gone."""
