"""The end of a worker that was stopped, step by step. Pure.

Time is an argument, as in `book.py`.

    stop ──▶ its receive ends ──▶ waiting messages are given back ──▶ handlers finish ──▶ over
                                                                   └─▶ are given up ──▶ over
"""

from dataclasses import dataclass
from math import inf

from escrowmq_client.worker.book import Book, Lease

_RECEIVING_MS = 2_000  # for the answer of a receive that is under way
GIVING_BACK_MS = 2_000  # for the last answers of the service


@dataclass
class Ending:
    """The steps of one worker's end; times are those at which it goes on in any case."""

    book: Book
    has_begun: bool = False
    _received_by_ms: float = inf
    _give_up_ms: float = inf
    _leave_ms: float = inf

    def begin(self, now_ms: float) -> None:
        """Note the stop."""
        self.has_begun = True
        self._received_by_ms = now_ms + _RECEIVING_MS
        self._give_up_ms = now_ms + self.book.options.shutdown_ms

    def start(self, now_ms: float, *, at_once: bool) -> list[Lease]:
        """Return the messages to handle now; none if their handlers would have no time.

        `at_once`: handlers have no more time.
        """
        return [] if at_once or now_ms >= self._give_up_ms else self.book.start()

    def give_back(self, now_ms: float, *, is_receiving: bool, at_once: bool) -> list[Lease]:
        """Give back the messages whose time has come; return those whose handlers still run."""
        if not self.has_begun:
            return []
        # What is given back while a receive waits would come to this worker again.
        if not is_receiving or now_ms >= self._received_by_ms:
            self._received_by_ms = inf
            if not self.book.is_stopping:
                self.book.stop(now_ms)
        if not self.book.is_stopping or not (at_once or now_ms >= self._give_up_ms):
            return []
        self._give_up_ms = inf
        self._leave_ms = min(self._leave_ms, now_ms + GIVING_BACK_MS)
        return self.book.give_up(now_ms)

    def is_over(self, now_ms: float) -> bool:
        """Whether the worker holds nothing more, or has no more time."""
        return self.book.is_stopping and (self.book.is_empty or now_ms >= self._leave_ms)

    def next_ms(self) -> float:
        """Return when the next step is due, whatever happens."""
        return min(self._received_by_ms, self._give_up_ms, self._leave_ms)
