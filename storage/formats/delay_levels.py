"""RocketMQ's fixed delays.

The storage floor needs them because a queue entry of a delayed message carries its delivery time.

Source: RocketMQ MessageStoreConfig.messageDelayLevel,
ScheduleMessageService#computeDeliverTimestamp.
"""

import re

from storage.formats import names, properties

SCHEDULE_TOPIC = names.SCHEDULE_TOPIC
DELAY_LEVEL = "DELAY"  # the property

DELAYS_MS = tuple(
    seconds * 1000
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600,
    7200)
)  # fmt: skip
_UNKNOWN_LEVEL_MS = 1000
_LEVEL = re.compile("[0-9]{1,10}")  # a Java int has no more digits


def due_ms(own_properties: bytes, stored_at_ms: int) -> int | None:
    """When a message of SCHEDULE_TOPIC with this property string is due; None where it has no
    level.

    Its queue entry has that in place of the hash of its tag.
    """
    level = properties.decode(own_properties).get(DELAY_LEVEL)
    return None if level is None else deliver_at_ms(level, stored_at_ms)


def deliver_at_ms(level: str, stored_at_ms: int) -> int:
    """When a message of this level (the property's text, from "1") that was stored then is due."""
    number = min(int(level), len(DELAYS_MS)) if _LEVEL.fullmatch(level) else 0
    return stored_at_ms + (DELAYS_MS[number - 1] if number else _UNKNOWN_LEVEL_MS)
