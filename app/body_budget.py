"""The memory of request and answer bodies: one limit for the bytes of all that are under way."""

from app.problems import Refusal

_SHARE_OF_ONE = 8


class BodyBudget:
    """Counts bytes of request bodies, as they are when decompressed, and of answers with messages.

    Event loop only.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def has_plenty(self, byte_count: int) -> bool:
        """Would `BodyShare.reserve` reserve so many bytes, and no fewer?"""
        return byte_count <= 1 + (self.limit_bytes - self.used_bytes - 1) // _SHARE_OF_ONE


class BodyShare:
    """The bytes that one request holds of the budget; `close` releases all of them, however the
    request ended.
    """

    __slots__ = ("_budget", "_held_bytes")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    def add(self, byte_count: int) -> None:
        """Count bytes that have come. Raises Refusal overloaded where they go beyond the budget."""
        budget = self._budget
        if budget.used_bytes + byte_count > budget.limit_bytes:
            raise Refusal(
                "overloaded", f"request bodies under way take {budget.limit_bytes} bytes already"
            )
        budget.used_bytes += byte_count
        self._held_bytes += byte_count

    def reserve(self, byte_count: int) -> int:
        """Count the bytes that an answer may have, and return their number: so many, or an eighth
        of what is left.

        Pages become shorter where memory is scarce; Refusal overloaded is raised where there is
        none.
        """
        self.add(1)
        left = self._budget.limit_bytes - self._budget.used_bytes
        reserved = min(byte_count, 1 + left // _SHARE_OF_ONE)
        self.add(reserved - 1)
        return reserved

    def release(self, byte_count: int) -> None:
        """Give back bytes of a body that goes on: they are in memory no longer."""
        self._budget.used_bytes -= byte_count
        self._held_bytes -= byte_count

    def hold(self, byte_count: int) -> None:
        """Change the count to so many bytes; never refused, as an answer that has been made is
        sent.
        """
        self.release(self._held_bytes - byte_count)

    def close(self) -> None:
        self.hold(0)
