"""What goes wrong, and where: a plan made before anything runs.

The same seed gives the same plan. What a crash then meets, the requests under way when the service
dies for example, is up to the machine; that is why the balance has to hold for every seed.
"""

import random
from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """Of the producer that handles a certain flight."""

    KILLED_AFTER_WRITE = "killed between its database write and its decision"
    KILLED_BEFORE_WRITE = "killed between begin and its database write"
    STALLED_BEFORE_WRITE = "so slow between begin and its database write that it is given up"

    @property
    def is_deadly(self) -> bool:
        return self is not Fate.STALLED_BEFORE_WRITE


@dataclass(frozen=True)
class Chaos:
    fates: dict[int, Fate]  # by flight number
    server_kills: list[int]  # the service is killed when so many flights are in the ledger


def plan(seed: int, rows: int, *, producer_kills: int, server_kills: int, stalls: int) -> Chaos:
    """Pure.

    Every third producer dies before its write, the others behind it; the server's deaths are spread
    over the run.
    """
    chance = random.Random(seed)
    fates = [
        Fate.KILLED_BEFORE_WRITE if index % 3 == 2 else Fate.KILLED_AFTER_WRITE
        for index in range(producer_kills)
    ]
    fates += [Fate.STALLED_BEFORE_WRITE] * stalls
    met_at = chance.sample(range(1, rows + 1), min(len(fates), rows))
    return Chaos(
        fates=dict(zip(met_at, fates, strict=False)),
        server_kills=[
            int(rows * (index + chance.random()) / server_kills) for index in range(server_kills)
        ],
    )
