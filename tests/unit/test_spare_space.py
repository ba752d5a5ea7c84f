"""The room for the next start is a file of zeros, and no other file of its name is touched."""

import os
from collections import namedtuple

import pytest

from app.disk.spare_space import SPARE_BYTES, SpareSpace

_Disk = namedtuple("_Disk", "f_bavail f_frsize")


@pytest.fixture
def full_disk(monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: _Disk(f_bavail=0, f_frsize=4_096))


def test_the_room_is_kept_and_given_back_where_the_disk_has_no_other(tmp_path, full_disk):
    spare = SpareSpace(tmp_path)
    spare.keep()
    assert (tmp_path / "spare").stat().st_size == SPARE_BYTES

    spare.release_for_replica()
    assert 0 < (tmp_path / "spare").stat().st_size < SPARE_BYTES
    spare.release_if_needed()
    assert (tmp_path / "spare").stat().st_size == 0


def test_a_file_of_another_program_that_has_its_name_stays_as_it_is(tmp_path, full_disk):
    path, spare = tmp_path / "spare", SpareSpace(tmp_path)
    for text in ("spare parts", "x" * SPARE_BYTES, "x" * (SPARE_BYTES + 1)):
        path.write_text(text)

        spare.release_if_needed()
        spare.release_for_replica()
        spare.keep()

        assert path.read_text() == text


def test_a_folder_of_another_program_that_has_its_name_stays_as_it_is(tmp_path, full_disk):
    path, spare = tmp_path / "spare" / "parts", SpareSpace(tmp_path)
    path.mkdir(parents=True)

    spare.release_if_needed()
    spare.release_for_replica()
    spare.keep()

    assert path.is_dir()
