"""How the controls for tests are set up."""

from dataclasses import dataclass

from storage.option_checks import require_at_least

# an extension of the ASGI scope: call it, and the client sees its connection reset
CUT = "escrowmq.cut"


@dataclass(frozen=True, kw_only=True)
class ControlOptions:
    # /v1/dev is there; its own setting, so that no other one turns it on by the way
    enabled: bool = False
    clock_ahead_ms: int = 0  # where the clock of an earlier start was

    def __post_init__(self) -> None:
        require_at_least(0, self, ["clock_ahead_ms"])
