"""Policies of checkback that history is played once more with. Pure."""

from typing import NamedTuple


class Policy(NamedTuple):
    """`limit`: answers "unknown" after which no more checks are sent."""

    first_after_ms: int
    interval_ms: int
    limit: int


POLICIES = (
    Policy(10_000, 30_000, 15),  # the default
    Policy(5_000, 10_000, 15),
    Policy(30_000, 60_000, 15),
    Policy(10_000, 30_000, 5),
    Policy(6_000, 60_000, 15),  # a broker's
)
