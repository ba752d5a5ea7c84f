"""Room that a transaction needs in one append: a begin is refused if its commit would not fit.
Pure.

A commit is one append: the final messages and the decision. Half messages that are written again
take less.
"""

from collections.abc import Iterable

from storage.errors import MessageTooLarge
from storage.message import Row

# of a message, beside body and properties of its half: the head and the topic of its record, the
# unit item, the times of a delay, its numbers in the decision
MESSAGE_BYTES = 512
_REASON_BYTES = 4 * 1_024  # of a decision: as many characters, of up to four bytes
_ANSWER_BYTES = 4_096 + 256  # of the check that decides: its evidence, and its times
DECISION_BYTES = 2_048 + _REASON_BYTES + _ANSWER_BYTES  # with its ids and keys


def check_room(halves: Iterable[Row], limit_bytes: int) -> None:
    """Raise MessageTooLarge if a transaction with these half messages could not be committed in one
    append of so many bytes of log.
    """
    body_bytes, other_bytes = 0, DECISION_BYTES
    for _, own, body, *_ in halves:
        body_bytes += len(body)
        other_bytes += len(own) + MESSAGE_BYTES
    if body_bytes + other_bytes > limit_bytes:
        raise MessageTooLarge(
            f"the bodies have {body_bytes} bytes; a commit takes {other_bytes} more in one append, "
            f"which has at most {limit_bytes}",
            limit_bytes=max(0, limit_bytes - other_bytes),
        )
