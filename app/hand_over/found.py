"""Reads the files of `config/` that a broker was the last to write."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from storage.errors import UnreadableConfig
from storage.formats import (
    consumer_filters,
    consumer_offsets,
    delay_progress,
    group_configs,
    topic_configs,
)
from storage.formats.config_json import ConfigFile, FileContent
from storage.formats.consumer_filters import ConsumerFilters
from storage.formats.consumer_offsets import ConsumerOffsets
from storage.formats.delay_progress import LevelOffsets
from storage.formats.group_configs import GroupConfigs
from storage.formats.topic_configs import TopicConfigs

T = TypeVar("T")
F = TypeVar("F", bound=ConfigFile)


class ConfigFiles(Protocol):
    """The files of a store, for where waiting is allowed."""

    def read(self, name: str, decode: Callable[[bytes], T]) -> T | None: ...

    def find(self, name: str, decode: Callable[[bytes], T]) -> FileContent[T]: ...

    def is_ours(self, name: str) -> bool: ...

    def replace(self, name: str, data: bytes) -> None: ...


class FileNote(NamedTuple):
    """A file of `config/` that was not read itself. `reason`: missing, empty or damaged;
    `backup_ms`: wall time of its copy (`.bak`), which was read instead; None where none was.
    """

    file: str
    reason: str
    backup_ms: int | None = None


class Found(NamedTuple):
    """Files of a broker; None where there is none, or it is not to be taken over."""

    topics: TopicConfigs | None = None
    groups: GroupConfigs | None = None
    offsets: ConsumerOffsets | None = None
    filters: ConsumerFilters | None = None
    files: tuple[FileNote, ...] = ()

    @property
    def is_empty(self) -> bool:
        return all(one is None for one in (self.topics, self.groups, self.offsets, self.filters))

    @property
    def lacks_offsets(self) -> bool:
        """Whether there is no file with the offsets of groups."""
        return any(
            one.file == consumer_offsets.FILE and one.backup_ms is None for one in self.files
        )


class Note(NamedTuple):
    """A setting of a broker that EscrowMQ does not keep; `kind`: topic, group or store."""

    kind: str
    name: str
    what: str


def find(files: ConfigFiles, *, also_ours: bool = False) -> Found:
    """Read the files. Raises UnreadableConfig.

    `also_ours`: those that EscrowMQ was the last to write, too, as where the registry is new.
    """
    notes: list[FileNote] = []

    def read(name: str, decode: Callable[[bytes], F]) -> F | None:
        if not also_ours and files.is_ours(name):
            return None
        found = files.find(name, decode)
        notes.extend(_note(name, found))
        content = found.value
        return None if content is None or (content.is_ours and not also_ours) else content

    found = Found(
        read(topic_configs.FILE, topic_configs.decode),
        read(group_configs.FILE, group_configs.decode),
        read(consumer_offsets.FILE, consumer_offsets.read),
        read(consumer_filters.FILE, consumer_filters.decode),
    )
    try:
        notes += _note(delay_progress.FILE, files.find(delay_progress.FILE, _levels))
    except UnreadableConfig as error:
        notes.append(FileNote(delay_progress.FILE, f"damaged ({error.reason})"))
    return found._replace(files=tuple(notes))


def _note(name: str, found: FileContent[T]) -> list[FileNote]:
    if found.backup is not None:
        return [FileNote(name, *found.backup)]
    return [FileNote(name, "missing")] if found.value is None else []


def _levels(raw: bytes) -> LevelOffsets:
    """Raises ValueError."""
    found = delay_progress.decode_levels(raw)
    if found is None:
        raise ValueError("no table of delay levels")
    return found
