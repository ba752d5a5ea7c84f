"""One point of the curves of `growth.py`."""

from typing import NamedTuple


class Point(NamedTuple):
    """Costs in µs a message, in a store that holds so many messages in so many topics."""

    messages: int
    topics: int
    encoding: float
    append: float
    read: float
    lookup: float
