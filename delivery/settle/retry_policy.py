"""Retry policy: when a message that was not acknowledged is delivered again, or becomes a dead
letter. Pure.
"""

from enum import Enum

from delivery.groups import GroupRules


class NackOutcome(Enum):
    AGAIN = "again"  # deliver it again after a delay
    DEAD_LETTER = "dead_letter"
    DISCARD = "discard"  # the group keeps no dead letters


def nack_outcome(rules: GroupRules, attempt: int) -> NackOutcome:
    """The result of a rejection of this delivery; deliveries count from 1."""
    if attempt < rules.max_attempts:
        return NackOutcome.AGAIN
    return NackOutcome.DEAD_LETTER if rules.dead_letter else NackOutcome.DISCARD


def backoff_ms(rules: GroupRules, attempt: int) -> int:
    """The delay of the next delivery after this one was rejected."""
    waits = rules.backoff_ms
    return waits[min(attempt, len(waits)) - 1] if waits else 0
