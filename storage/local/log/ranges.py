"""Numbers that were verified, as ranges."""

from bisect import bisect_left, bisect_right
from threading import Lock

_MOST = 100_000


class Ranges:
    """A set of integers as ranges that do not touch. One thread adds while another asks.

    Forgets everything when it grows too long: then it is verified again.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._begins: list[int] = []
        self._ends: list[int] = []

    def covers(self, number: int) -> bool:
        with self._lock:
            index = bisect_right(self._begins, number) - 1
            return index >= 0 and number < self._ends[index]

    def end_of(self, number: int) -> int:
        """The end of the range that holds the number; the number itself where none does."""
        with self._lock:
            index = bisect_right(self._begins, number) - 1
            return max(number, self._ends[index]) if index >= 0 else number

    def add(self, begin: int, end: int) -> None:
        if begin == end:
            return
        with self._lock:
            if len(self._begins) >= _MOST:
                self._begins.clear()
                self._ends.clear()
            first = bisect_left(self._ends, begin)
            last = bisect_right(self._begins, end)
            if first < last:
                begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
            self._begins[first:last] = [begin]
            self._ends[first:last] = [end]
