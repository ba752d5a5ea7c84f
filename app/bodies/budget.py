"""The memory of request and answer bodies: one limit for the bytes of all that are under way.

Answers may take a part of it only, so that clients that do not read theirs leave room for requests.
Their size is known before anything follows from them: what has no room is not answered, and a
receive leases nothing then. Large bodies leave room for small ones, which all decisions have.
"""

from collections.abc import Callable
from typing import Any

from app.problems import Refusal

SMALL_BYTES = 4 << 10  # of a body that is small
UNCOUNTED_BYTES = 64 << 10  # an answer of so many fits into the write buffer of its connection
_SHARE_OF_ONE = 8
_SMALL_SHARE = 16  # of the limit is for small bodies: a sixteenth


class NoRoom(Refusal):
    """An answer has no room now. `byte_count`: what it needs."""

    def __init__(self, byte_count: int) -> None:
        super().__init__("overloaded", "answers under way take as much memory as they may")
        self.byte_count = byte_count

    def __reduce__(self) -> Any:
        return NoRoom, (self.byte_count,)


class BodyBudget:
    """Counts bytes of request bodies, as they are when decompressed, and of answers.

    Event loop only.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.large_limit_bytes = limit_bytes - limit_bytes // _SMALL_SHARE  # without small bodies
        self.answer_limit_bytes = limit_bytes * 3 // 4
        self.body_bytes = 0
        self.answer_bytes = 0
        # Is an answer under way that is larger than all answers may be? One may, as it would be
        # stuck for ever.
        self.has_oversized = False
        self._waiting: dict[Callable[[], None], int] = {}  # what each needs, the oldest first

    @property
    def used_bytes(self) -> int:
        return self.body_bytes + self.answer_bytes

    def takes(self, byte_count: int, *, is_small: bool = False) -> bool:
        """Is there room for so many more bytes of a body?"""
        # an oversized answer takes nothing from requests
        answer_bytes = self.answer_bytes
        if answer_bytes > self.answer_limit_bytes:
            answer_bytes = self.answer_limit_bytes
        limit_bytes = self.limit_bytes if is_small else self.large_limit_bytes
        return self.body_bytes + answer_bytes + byte_count <= limit_bytes

    def left_for_answers(self) -> int:
        """Number of bytes that answers may still take."""
        of_answers = self.answer_limit_bytes - self.answer_bytes
        of_all = self.large_limit_bytes - self.body_bytes - self.answer_bytes
        return min(of_answers, of_all)

    def has_plenty(self, byte_count: int) -> bool:
        """Would `BodyShare.reserve` reserve so many bytes, and no fewer?"""
        return byte_count <= 1 + (self.left_for_answers() - 1) // _SHARE_OF_ONE

    def change_answers(self, byte_count: int) -> None:
        """Answers take so many bytes more, or fewer."""
        self.answer_bytes += byte_count
        if byte_count < 0 and self._waiting:
            self.wake()

    def release_bodies(self, byte_count: int) -> None:
        """Bodies take so many bytes fewer."""
        self.body_bytes -= byte_count
        if self._waiting:
            self.wake()

    def has_room(self, more_bytes: int, byte_count: int) -> bool:
        """May an answer have so many more bytes, so that it has `byte_count`?"""
        if more_bytes <= 0 or more_bytes <= self.left_for_answers():
            return True
        return byte_count > self.answer_limit_bytes and not self.has_oversized

    def call_when_room(self, byte_count: int, call: Callable[[], None]) -> None:
        """Call it once when an answer of so many bytes may have room: now, if there is room since
        it was refused.
        """
        self._waiting[call] = byte_count
        self.wake()

    def forget_call(self, call: Callable[[], None]) -> None:
        """Do not call it any more. Where it was called, the room is for the next one."""
        if self._waiting.pop(call, None) is None:
            self.wake()

    def wake(self) -> None:
        """Call those that have waited longest for what there is room for now."""
        left_bytes = self.left_for_answers()
        calls = []
        for call, byte_count in self._waiting.items():  # not a copy: thousands may wait
            is_oversized = byte_count > self.answer_limit_bytes
            if byte_count > left_bytes and (self.has_oversized or not is_oversized):
                break
            left_bytes -= byte_count
            calls.append(call)
        for call in calls:
            if self._waiting.pop(call, None) is not None:
                call()


class BodyShare:
    """The bytes that one request holds of the budget, of its body and of its answer; `close`
    releases all of them, however the request ended.
    """

    __slots__ = ("_answer_bytes", "_body_bytes", "_budget", "_is_oversized")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._body_bytes = 0
        self._answer_bytes = 0
        self._is_oversized = False

    # ----------------------------------------------------------------------------------------------
    # of the body

    def add(self, byte_count: int) -> None:
        """Count bytes that have come. Raises Refusal overloaded where they go beyond the budget."""
        budget, body_bytes = self._budget, self._body_bytes + byte_count
        if byte_count and not budget.takes(byte_count, is_small=body_bytes <= SMALL_BYTES):
            raise Refusal("overloaded", "the limit of memory for request bodies is reached")
        budget.body_bytes += byte_count
        self._body_bytes = body_bytes

    def release(self, byte_count: int) -> None:
        """Give back bytes of a body that goes on: they are in memory no longer."""
        self._body_bytes -= byte_count
        self._budget.release_bodies(byte_count)

    def keep(self, byte_count: int) -> None:
        """Release what is not needed any more: so many bytes of the body are still in memory."""
        self.release(self._body_bytes - byte_count)

    # ----------------------------------------------------------------------------------------------
    # of the answer

    def reserve(self, byte_count: int) -> int:
        """Count the bytes that an answer may have, and return their number: so many, or an eighth
        of what is left.

        Pages become shorter where memory is scarce; NoRoom is raised where there is none.
        """
        self.hold(0)
        left_bytes = self._budget.left_for_answers()
        if left_bytes <= 0:
            raise NoRoom(1)
        reserved = min(byte_count, 1 + (left_bytes - 1) // _SHARE_OF_ONE)
        self.hold(reserved)
        return reserved

    def fit(self, byte_count: int) -> None:
        """Count the answer, whose size is known now: a first message may be larger than what was
        reserved. Raises NoRoom.
        """
        budget = self._budget
        if not (self._is_oversized or budget.has_room(byte_count - self._answer_bytes, byte_count)):
            self.hold(0)
            raise NoRoom(byte_count)
        if byte_count > budget.answer_limit_bytes:
            self._is_oversized = budget.has_oversized = True
        self.hold(byte_count)

    def has_plenty(self, byte_count: int) -> bool:
        """As `BodyBudget.has_plenty`."""
        return self._budget.has_plenty(byte_count)

    def hold(self, byte_count: int) -> None:
        """Change the count of the answer to so many bytes; never refused, as an answer that has
        been made is sent.
        """
        change, self._answer_bytes = byte_count - self._answer_bytes, byte_count
        if self._is_oversized and not byte_count:
            self._is_oversized = self._budget.has_oversized = False
        self._budget.change_answers(change)

    def hold_rest(self, byte_count: int) -> None:
        """Release what was written of an answer: so many bytes at most are left."""
        if byte_count < self._answer_bytes:
            self.hold(byte_count)

    def call_when_room(self, byte_count: int, call: Callable[[], None]) -> None:
        """As `BodyBudget.call_when_room`."""
        self._budget.call_when_room(byte_count, call)

    def forget_call(self, call: Callable[[], None]) -> None:
        """As `BodyBudget.forget_call`."""
        self._budget.forget_call(call)

    def close(self) -> None:
        self.hold(0)
        self.release(self._body_bytes)
