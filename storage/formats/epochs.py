"""The epochs of a log: where each one begins, and up to where two logs agree.

Every unit of ours states its epoch. One process writes all units of an epoch, one behind another;
so of two logs that know the same epoch one holds the beginning of what the other holds of it, and
the shorter end of the newest common one is a border of units in both. Source: Kafka's leader
epochs (KIP-101, KIP-279) and RocketMQ's EpochFile; a cut at the place that was last known to be
safe instead has lost messages.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

EPOCHS_OF_A_PROMOTION = 1_000  # a start after a crash takes one


class EpochBegin(NamedTuple):
    """An epoch, and the log offset where the units before it end.

    That is where its first unit begins, or the end-of-file record in front of it: the writer of a
    segment's first unit closes the segment before.
    """

    epoch: int
    offset: int


class EpochHistory:
    """Epochs in the order of the log: their numbers rise, their offsets do not fall."""

    def __init__(self, begins: Iterable[tuple[int, int]] = ()) -> None:
        self._begins: list[EpochBegin] = []
        for epoch, offset in begins:
            self.note(epoch, offset)

    def __iter__(self) -> Iterator[EpochBegin]:
        return iter(self._begins)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochHistory) and self._begins == other._begins

    def __repr__(self) -> str:
        return f"EpochHistory({[tuple(begin) for begin in self._begins]})"

    @property
    def last_epoch(self) -> int:
        """The last epoch; 0 if no unit is of EscrowMQ."""
        return self._begins[-1].epoch if self._begins else 0

    @property
    def last_begin(self) -> int:
        """The log offset where that epoch begins."""
        return self._begins[-1].offset if self._begins else 0

    def note(self, epoch: int, offset: int) -> None:
        """Units of this epoch begin at `offset`, where all that were noted before end."""
        if epoch > self.last_epoch:
            self._begins.append(EpochBegin(epoch, offset))

    def forget(self, epoch: int) -> bool:
        """Forget this epoch, of which there is no unit; False where it is not the last one."""
        if epoch != self.last_epoch:
            return False
        self._begins.pop()
        return True

    def end_of(self, epoch: int, log_end: int) -> int | None:
        """The end of the units of this epoch in a log that ends at `log_end`; None if there are
        none.

        Everything before the first epoch is epoch 0: the records of a broker, or nothing.
        """
        begins = [EpochBegin(0, 0), *self._begins]
        for index, begin in enumerate(begins):
            if begin.epoch == epoch:
                is_last = index + 1 == len(begins)
                return log_end if is_last else begins[index + 1].offset
        return None


def common_end(own: EpochHistory, own_end: int, other: EpochHistory, other_end: int) -> int:
    """Up to where two logs that end there may be equal; behind it they differ, or one of them
    ends.
    """
    for epoch in (*[begin.epoch for begin in reversed(list(own))], 0):
        end, other_of_epoch = own.end_of(epoch, own_end), other.end_of(epoch, other_end)
        if end is not None and other_of_epoch is not None:
            return min(end, other_of_epoch)
    raise AssertionError("every log has an epoch 0")
