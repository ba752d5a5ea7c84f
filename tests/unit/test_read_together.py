"""Many pieces of a file in few calls: the bytes of each, whatever lies between them, and no more
than the page cache has.
"""

import mmap
import os
from pathlib import PurePath

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.files.vfs import OsVfs
from tests.fault.campaign_size import sized

BUFFER = bytearray(256 << 10)
CONTENT = os.urandom(1 << 20)
LENGTHS = st.integers(1, 2_000) | st.sampled_from([len(BUFFER) - 1, len(BUFFER)])
GAPS = st.sampled_from([0, 1, 500, 16 << 10, (16 << 10) + 1, 100_000, -3_000])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = PurePath(tmp_path_factory.mktemp("files")) / "file"
    with open(path, "wb") as made:
        made.write(CONTENT)
    opened = OsVfs().open(path)
    yield opened
    opened.close()


@settings(max_examples=sized(ci=100, full=5_000))
@given(given_places=st.lists(st.tuples(GAPS, LENGTHS), max_size=12))
def test_each_piece_is_what_is_there_up_to_the_first_one_that_the_file_does_not_have(
    file, given_places
):
    places, at = [], 0
    for gap, length in given_places:
        at = max(0, at + gap)
        places.append((at, length))
        at += length

    found = file.read_each_cached(places, BUFFER)

    whole = [
        index for index, (offset, length) in enumerate(places) if offset + length > len(CONTENT)
    ]
    expected = places[: whole[0]] if whole else places
    assert found == [CONTENT[offset : offset + length] for offset, length in expected]


def test_pieces_that_are_near_one_another_are_read_in_one_call(file, monkeypatch):
    calls = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *given: calls.append(given[2]) or preadv(*given))

    file.read_each_cached([(offset, 300) for offset in range(0, 200_000, 4_000)], BUFFER)
    file.read_each_cached([(0, 300), (100_000, 300)], BUFFER)

    assert calls == [0, 0, 100_000]


def test_a_mapping_knows_what_the_page_cache_has(tmp_path):
    file = OsVfs().open(PurePath(tmp_path) / "file", create=True)
    page = mmap.PAGESIZE
    file.write(0, bytes(64 * page))
    file.sync()
    region = file.map()
    written = region.is_cached(0, 64 * page)
    file.drop_cache()
    dropped = region.is_cached(40 * page + 5, 40 * page + 6)
    if file.read_cached(40 * page, 1) is not None:  # asked last, as it makes the kernel read
        pytest.skip("the file system of this folder has no cache that can be dropped")
    file.read(0, page)
    read = [region.is_cached(0, page), region.is_cached(7, 8)]
    outside = [region.is_cached(-1, 1), region.is_cached(0, 64 * page + 1)]
    region.close()
    file.close()

    assert (written, dropped) == (True, False)
    assert read == [True, True]
    assert outside == [False] * 2


@pytest.mark.parametrize(
    "lengths",
    [[700] * 40, [700] * 39 + [701], [1], [len(CONTENT)]],
    ids=["equal", "unequal", "one", "all"],
)
def test_pieces_of_a_mapping_are_joined_whether_they_are_equally_long_or_not(file, lengths):
    region = file.map()
    last = len(CONTENT) - lengths[-1]
    offsets = [*(number * 9_001 for number in range(len(lengths) - 1)), last]

    joined = region.read_joined(np.array(offsets), lengths)

    assert joined == b"".join(
        CONTENT[at : at + length] for at, length in zip(offsets, lengths, strict=True)
    )
    region.close()  # which a live view of it would not allow
