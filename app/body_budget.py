"""The memory of request bodies: one limit for the bytes of all that are under way."""

from app.problems import Refusal


class BodyBudget:
    """Counts bytes of request bodies, as they are when decompressed. Event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0


class BodyShare:
    """The bytes that one request holds of the budget; `close` releases all of them, however the request ended."""

    __slots__ = ("_budget", "_held_bytes")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    def add(self, byte_count: int) -> None:
        """Count bytes that have come. Raises Refusal overloaded where they go beyond the budget."""
        budget = self._budget
        if budget.used_bytes + byte_count > budget.limit_bytes:
            raise Refusal("overloaded", f"request bodies under way take {budget.limit_bytes} bytes already")
        budget.used_bytes += byte_count
        self._held_bytes += byte_count

    def release(self, byte_count: int) -> None:
        """Give back bytes of a body that goes on: they are in memory no longer."""
        self._budget.used_bytes -= byte_count
        self._held_bytes -= byte_count

    def hold(self, byte_count: int) -> None:
        """Give back all but so many bytes."""
        self.release(self._held_bytes - byte_count)

    def close(self) -> None:
        self.hold(0)
