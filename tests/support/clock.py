"""Time that a test moves."""


class ManualClock:
    def __init__(self, wall_ms: int = 1_800_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = 1_000

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def restart(self) -> None:
        """Another process: its monotonic clock begins anew."""
        self._monotonic_ms = 7

    def jump(self, ms: int) -> None:
        """Set the wall clock ahead, or back; no time has passed."""
        self._wall_ms += ms

    def advance(self, ms: int) -> None:
        self._wall_ms += ms
        self._monotonic_ms += ms
