"""Where each consumer group of a broker goes on in each queue: `config/consumerOffset.json`.

Pure; a broker writes it, we read.

    {"offsetTable":{"TOPIC@GROUP":{0:12,1:9}}, ...}

The keys of the inner tables are integers without quotes: JSON it is only with quotes around them.

Source: RocketMQ ConsumerOffsetManager.
"""

import json
import re
from typing import Any, NamedTuple

# no name of a topic or a group has any of these signs
_BARE_KEY = re.compile(r"(?<=[{,])\s*(-?[0-9]{1,9})\s*:")


class GroupQueue(NamedTuple):
    group: str
    topic: str
    queue_id: int


def decode(raw: bytes) -> dict[GroupQueue, int] | None:
    """The offset of the next message for each; None where it is no such file, or not whole."""
    try:
        found = json.loads(_BARE_KEY.sub(r'"\1":', raw.decode("utf-8", "replace")))
        table: dict[str, dict[str, Any]] = found["offsetTable"]
        return {
            GroupQueue(group, topic, int(number)): _long(offset)
            for (topic, group), queues in ((_parts(name), queues) for name, queues in table.items())
            for number, offset in queues.items()
        }
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        return None


def _parts(name: str) -> tuple[str, str]:
    topic, _, group = name.partition("@")
    return topic, group


def _long(value: Any) -> int:
    """Raises OverflowError where no broker could have written it, ValueError, TypeError."""
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError
    return number
