"""JSON of the files in a broker's `config/`. Pure.

RocketMQ writes the integer keys of a map without quotes (`{0:12,1:9}`), which is JSON only with
quotes around them. It passes over members that it does not know, and leaves them out when it
writes the file: so the member `writtenBy` says that EscrowMQ was the last to write a file.

Source: RocketMQ ConfigManager, RemotingSerializable (fastjson 1.2), DataVersion.
"""

import re
from typing import Annotated, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

MOST_BYTES = 64 << 20  # of one file; a million offsets of a group have 60 bytes each
WRITER = "EscrowMQ"

Int = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Long = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

# Each byte is looked at once, also in a string that does not end.
_STRING_OR_KEY = re.compile(r'"(?:[^"\\]++|\\.)*+"?|([{,]\s*+)(-?[0-9]{1,19})(?=\s*+:)')

T = TypeVar("T")
F = TypeVar("F", bound="ConfigFile")


class Backup(NamedTuple):
    """The copy of a file (`.bak`) that was read instead of it. `reason`: what the file is;
    `written_ms`: wall time at which the copy was written, 0 if that is not known.
    """

    reason: str
    written_ms: int


class FileContent(NamedTuple, Generic[T]):
    """The content of a file, None where it does not exist; `backup`: if that is of its copy."""

    value: T | None
    backup: Backup | None = None


class ConfigObject(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An object of a file. The names of its members are RocketMQ's, in camel case."""


class DataVersion(ConfigObject, frozen=True, kw_only=True):
    """The version of a file: `counter` is a number of changes."""

    counter: Long = 0
    state_version: Long = 0
    timestamp: Long = 0

    def next(self, now_ms: int) -> "DataVersion":
        return msgspec.structs.replace(self, counter=self.counter + 1, timestamp=now_ms)


class ConfigFile(ConfigObject, frozen=True, kw_only=True):
    """The whole content of a file."""

    data_version: DataVersion = DataVersion()
    written_by: str | UnsetType = UNSET

    @property
    def is_ours(self) -> bool:
        """Was EscrowMQ the last to write the file, and no broker?"""
        return isinstance(self.written_by, str) and self.written_by.casefold() == WRITER.casefold()

    def as_ours(self: F) -> F:
        """The content as EscrowMQ writes it."""
        return msgspec.structs.replace(self, written_by=WRITER)


def decode(raw: bytes, kind: type[F]) -> F:
    """Raises ValueError, which says where the content is wrong.

    Unknown members are left out.
    """
    if len(raw) > MOST_BYTES:
        raise ValueError(f"too large: at most {MOST_BYTES} bytes are read")
    try:
        return msgspec.json.decode(as_json(raw), type=kind, strict=False)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def as_json(raw: bytes) -> str:
    """The text of a file with quotes around each key."""
    return _STRING_OR_KEY.sub(_quoted, raw.decode("utf-8", "replace"))


def encode(content: ConfigFile) -> bytes:
    """The file as EscrowMQ writes it; keys are in order, so that equal content is equal bytes."""
    return msgspec.json.format(msgspec.json.encode(content.as_ours(), order="sorted"), indent=2)


def _quoted(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else f'{found[1]}"{found[2]}"'
