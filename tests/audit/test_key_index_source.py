"""Index files as rows: what a header says is believed as far as the file bears it out."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from audit.log import key_index
from audit.spark import key_index_source
from storage.formats import index_file
from storage.formats.index_file import ENTRY, HEADER_BYTES, Header

NAME = "20270115080000000"
SCHEMA = pa.schema({"entry": pa.int64(), "log_offset": pa.int64(), "is_linked": pa.bool_()})
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NEAR_THE_ENDS = st.sampled_from([-(1 << 31), -1, 0, 1, 2, 30, 31, 32, 33, 40, (1 << 31) - 1])
HEADERS = st.builds(Header, INT64, INT64, INT64, INT64, INT32, INT32 | NEAR_THE_ENDS)
SHAPES = st.sampled_from([(8, 32), (7, 32), (1, 4), (8, 0)])


def read(store: Path) -> list[tuple[key_index.IndexFile, list[pa.RecordBatch]]]:
    """Each file, and its rows where it can be read."""
    found = []
    for file in key_index.index_files(str(store)):
        with fs.LocalFileSystem().open_input_file(file.path) as opened:
            found.append(
                (file, list(key_index_source.rows(file, opened, SCHEMA)) if file.slots else [])
            )
    return found


def write(store: Path, raw: bytes) -> None:
    (store / "index").mkdir(exist_ok=True)
    (store / "index" / NAME).write_bytes(raw)


@given(
    header=HEADERS,
    shape=SHAPES,
    filling=st.binary(min_size=ENTRY.itemsize, max_size=64),
    cut=st.integers(0, 60),
)
def test_whatever_a_header_says_its_file_is_read_as_far_as_it_goes_or_counts_as_unreadable(
    header, shape, filling, cut
):
    slots, entries = shape
    body_bytes = index_file.file_bytes(slots, entries) - HEADER_BYTES
    body = (filling * (body_bytes // len(filling) + 1))[:body_bytes]
    raw = index_file.encode_header(header) + body
    raw = raw[: max(1, len(raw) - cut)]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), raw)

        found = read(Path(folder))

    if header.next_entry in (0, 1) and len(raw) >= HEADER_BYTES:
        assert found == [], "nobody has written an entry to it"
    else:
        ((file, batches),) = found
        assert sum(batch.num_rows for batch in batches) == (
            header.next_entry - 1 if file.slots else 0
        )
        if file.slots:
            assert index_file.entry_at(file.slots, header.next_entry) <= len(raw)


@pytest.mark.parametrize("next_entry", [33, 1 << 30, (1 << 31) - 1, -1, -(1 << 31)])
def test_a_header_that_counts_more_entries_than_the_file_holds_or_less_than_none_makes_it_unreadable(
    tmp_path, next_entry
):
    raw = index_file.encode_header(Header(0, 0, 0, 0, 0, next_entry))
    write(tmp_path, raw.ljust(index_file.file_bytes(8, 32), b"\0"))

    ((file, _),) = read(tmp_path)

    assert (file.name, file.slots) == (NAME, 0)


def test_a_file_of_more_slots_than_anybody_has_is_not_followed(tmp_path):
    write(tmp_path, index_file.encode_header(Header(0, 0, 0, 0, 0, 2)))
    with (tmp_path / "index" / NAME).open("r+b") as file:
        file.truncate(index_file.file_bytes(1 << 29, 1 << 31))  # 44 GB of holes

    ((file, _),) = read(tmp_path)

    assert file.slots == 0


def test_a_file_that_is_shorter_than_a_header_counts_as_unreadable(tmp_path):
    write(tmp_path, b"\0" * (HEADER_BYTES - 1))

    ((file, _),) = read(tmp_path)

    assert file.slots == 0
