"""Where each consumer group goes on in each queue: `config/consumerOffset.json`. Pure.

    {"offsetTable":{"TOPIC@GROUP":{0:12,1:9}}, "dataVersion":{...}}

A broker reads no other members: a reset that is under way, or how far a client has pulled, is in no
file.

Source: RocketMQ ConsumerOffsetManager.
"""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from storage.formats import config_json
from storage.formats.config_json import ConfigFile, DataVersion, Int, Long

FILE = "consumerOffset.json"


class GroupQueue(NamedTuple):
    group: str
    topic: str
    queue_id: int


class ConsumerOffsets(ConfigFile, frozen=True, kw_only=True):
    """Content of the file.

    `offset_table`: the offset of the next message, by `topic@group` and queue.
    """

    offset_table: dict[str, dict[Int, Long]]

    def by_queue(self) -> dict[GroupQueue, int]:
        """Offsets by group and queue. Keys of another form are left out: a broker passes over them
        too.
        """
        return {
            GroupQueue(group, topic, number): offset
            for name, queues in self.offset_table.items()
            for topic, separator, group in (name.partition("@"),)
            if topic and group and "@" not in group
            for number, offset in queues.items()
        }


def read(raw: bytes) -> ConsumerOffsets:
    """Raises ValueError."""
    return config_json.decode(raw, ConsumerOffsets)


def decode(raw: bytes) -> dict[GroupQueue, int] | None:
    """The offset of the next message for each; None where it is no such file, or not whole."""
    try:
        return read(raw).by_queue()
    except ValueError:
        return None


def group_table(group: str, topics: Mapping[str, Mapping[int, int]]) -> str:
    """The lines of one group in the file."""
    return ",\n\t\t".join(
        f"{json.dumps(f'{topic}@{group}')}:{{{_entries(queues)}\n\t\t}}"
        for topic, queues in sorted(topics.items())
        if queues
    )


def encode(groups: Iterable[str], version: DataVersion) -> bytes:
    """The file as EscrowMQ writes it. `groups`: of each the result of `group_table`."""
    table = ",\n\t\t".join(lines for lines in groups if lines)
    return (
        f'{{\n\t"dataVersion":{{\n\t\t"counter":{version.counter},'
        f'\n\t\t"stateVersion":{version.state_version},\n\t\t"timestamp":{version.timestamp}'
        f'\n\t}},\n\t"offsetTable":{{\n\t\t{table}\n\t}},'
        f'\n\t"writtenBy":"{config_json.WRITER}"\n}}'
    ).encode()


def tables_of(offsets: Mapping[GroupQueue, int]) -> list[str]:
    """The lines of all groups of these offsets."""
    by_group: dict[str, dict[str, dict[int, int]]] = {}
    for (group, topic, number), offset in offsets.items():
        by_group.setdefault(group, {}).setdefault(topic, {})[number] = offset
    return [group_table(group, by_group[group]) for group in sorted(by_group)]


def by_name(offsets: Mapping[GroupQueue, int]) -> dict[str, dict[int, int]]:
    """The offsets as the file has them, by `topic@group` and queue."""
    table: dict[str, dict[int, int]] = {}
    for (group, topic, number), offset in offsets.items():
        table.setdefault(f"{topic}@{group}", {})[number] = offset
    return table


def _entries(queues: Mapping[int, int]) -> str:
    return ",".join([f"{number}:{offset}" for number, offset in sorted(queues.items())])
