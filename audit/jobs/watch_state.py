"""State of a watch in a folder: one file for each batch, written whole.

DIR/rows/<batch>-.../    Parquet: the numbers of each transaction that is open, or may be heard of
                         again; each run has a name of its own
DIR/states/<batch>.json  what is counted, and the rows that belong to it; written last: a batch is
                         counted once it is there
"""

import re

import msgspec
from msgspec import field
from pyarrow import fs

from audit.files import whole_files
from audit.files.filesystems import filesystem_of
from audit.files.uris import below, without_secrets

_KEPT = 2  # states and their rows
_NAME = re.compile(r"(-?[0-9]+)\.json")


class StateError(Exception):
    """The folder holds the state of something else, or is that of another watch."""


_STORED_AS = {"reported_facts": "told_facts"}


class State(msgspec.Struct, frozen=True, kw_only=True, rename=_STORED_AS):
    """After a batch.

    `open` and `closed` count transactions by their facts; offsets are log offsets.
    """

    log: str
    begin: int
    reached: int  # all below is counted
    tail: str | None = None  # of the bytes before `reached`, see log_files.tail_sum
    first_half_number: int | None = None
    batch: int = -1
    rows: str | None = None  # the folder of the transactions that are `open`
    newest_ms: int = 0  # of what is stored
    open: dict[int, int] = field(default_factory=dict)
    open_bytes: int = 0
    open_records: int = 0
    closed: dict[int, int] = field(default_factory=dict)
    other_bytes: int = 0  # of what is closed, and of no transaction
    other_records: int = 0
    damaged_stretches: int = 0
    damaged_bytes: int = 0
    # Of the rows these are no more: of such facts, and last heard of before.
    left_facts: tuple[int, ...] = ()
    left_before_ms: int = 0
    reported_facts: tuple[int, ...] = ()  # of these the rows were reported as findings
    # the last half of those that are closed, and its number in its queue
    forgotten_offset: int | None = None
    forgotten_number: int | None = None


class StateFolder:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._filesystem, self._path = filesystem_of(uri)

    def rows(self, name: str) -> str:
        return below(self.uri, f"rows/{name}")

    def newest(self) -> State | None:
        """Raises StateError."""
        numbers = self._numbers()
        if not numbers:
            return None
        with self._filesystem.open_input_file(self._file(max(numbers))) as file:
            raw = file.read()
        try:
            return msgspec.json.decode(raw, type=State)
        except msgspec.DecodeError as error:
            raise StateError(f"{self._file(max(numbers))} is no state: {error}") from None

    def write(self, state: State) -> None:
        """Write the whole state or nothing, and delete old versions. Raises StateError."""
        if (newest := max(self._numbers(), default=-2)) >= state.batch:
            raise StateError(
                f"another watch uses {without_secrets(self.uri)}: it has written batch {newest}"
            )
        whole_files.make_folder(self._filesystem, f"{self._path}/states")
        whole_files.write(self._filesystem, self._file(state.batch), msgspec.json.encode(state))
        for number in sorted(self._numbers())[:-_KEPT]:
            self._filesystem.delete_file(self._file(number))
        self._drop_rows(before=state.batch - _KEPT + 1)

    def _drop_rows(self, *, before: int) -> None:
        found = self._filesystem.get_file_info(
            fs.FileSelector(f"{self._path}/rows", allow_not_found=True)
        )
        for one in found:
            number = one.base_name.partition("-")[0]
            if number.isdecimal() and int(number) < before:
                self._filesystem.delete_dir(one.path)

    def _numbers(self) -> list[int]:
        found = self._filesystem.get_file_info(
            fs.FileSelector(f"{self._path}/states", allow_not_found=True)
        )
        names = [_NAME.fullmatch(one.base_name) for one in found]
        return [int(name[1]) for name in names if name is not None]

    def _file(self, number: int) -> str:
        return f"{self._path}/states/{number}.json"
