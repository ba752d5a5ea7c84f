"""The room for the next start is a file of zeros, and no other file of its name is touched."""

import os
from collections import namedtuple

import pytest
from structlog.testing import capture_logs

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


@pytest.mark.parametrize("size", [0, SPARE_BYTES // 2, SPARE_BYTES])
@pytest.mark.parametrize("mode", [0, 0o400])
def test_a_file_that_may_not_be_written_costs_one_warning_and_no_start(
    folder_of_a_user, full_disk, mode, size
):
    path, spare = folder_of_a_user / "spare", SpareSpace(folder_of_a_user)
    path.write_bytes(bytes(size))
    path.chmod(mode)

    with capture_logs() as logs:
        spare.release_if_needed()
        spare.release_for_replica()
        for _ in range(3):
            spare.keep()

    (warned,) = logs
    assert warned["event"] == "spare_space_not_kept"
    assert warned["reason"] == f"{path} may not be read and written by this process"
    assert "the next start" in warned["effect"]
    assert path.stat().st_size == size


def test_a_file_that_may_not_be_written_is_reported_at_a_start_with_space(folder_of_a_user):
    path, spare = folder_of_a_user / "spare", SpareSpace(folder_of_a_user)
    spare.keep()
    path.chmod(0o400)

    with capture_logs() as logs:
        spare.keep()

    assert [line["event"] for line in logs] == ["spare_space_not_kept"]


@pytest.mark.parametrize("target", ["away/spare", "other", "spare"])
def test_a_link_that_leads_to_no_file_is_one_warning_and_stays(tmp_path, full_disk, target):
    path, spare = tmp_path / "spare", SpareSpace(tmp_path)
    path.symlink_to(target)

    with capture_logs() as logs:
        spare.release_if_needed()
        spare.release_for_replica()
        for _ in range(3):
            spare.keep()

    (warned,) = logs
    assert warned["event"] == "spare_space_not_kept"
    assert warned["reason"] == f"{path} is a link that leads to no file"
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_into_a_folder_that_may_not_be_entered_is_one_warning(folder_of_a_user):
    path, away = folder_of_a_user / "spare", folder_of_a_user / "away"
    away.mkdir()
    path.symlink_to(away / "spare")
    spare = SpareSpace(folder_of_a_user)
    away.chmod(0)

    with capture_logs() as logs:
        spare.release_if_needed()
        spare.keep()
    away.chmod(0o700)

    assert [line["event"] for line in logs] == ["spare_space_not_kept"]


def test_a_file_of_another_program_is_reported_once(tmp_path):
    (tmp_path / "spare").write_text("spare parts")
    spare = SpareSpace(tmp_path)

    with capture_logs() as logs:
        for _ in range(3):
            spare.keep()

    assert [line["event"] for line in logs] == ["spare_space_not_kept"]
