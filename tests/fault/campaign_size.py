"""How large a campaign is: `FAULTS=ci`, the default, asks its promise in seconds; `FAULTS=full`
asks it for as long as it takes to trust the answer (the figures are in docs/guarantees.md).
"""

import os

FULL = os.environ.get("FAULTS", "ci") == "full"


def sized(*, ci: int, full: int) -> int:
    """The count for the size that was asked for."""
    return full if FULL else ci
