"""The data folder of a service is on disk before anything in it is acknowledged."""

import errno
import os

import pytest

from app.disk.data_folder import make_data_folder


@pytest.fixture
def synced(monkeypatch):
    """The folders that were synced."""
    paths = []
    sync = os.fsync

    def noting(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    return paths


def test_the_names_of_a_new_folder_and_of_those_above_it_are_on_disk(tmp_path, synced):
    make_data_folder(tmp_path / "srv" / "shop" / "data")

    assert sorted(synced) == [str(tmp_path / name) for name in ("", "srv", "srv/shop")]


def test_a_folder_that_was_there_is_on_disk_too(tmp_path, synced):
    (tmp_path / "data").mkdir()

    make_data_folder(tmp_path / "data")

    assert synced == [str(tmp_path)]


@pytest.mark.parametrize("failure", [errno.EINVAL, errno.EIO])
def test_a_folder_above_it_that_cannot_be_synced_is_passed_over_but_a_broken_disk_is_not(
    tmp_path, monkeypatch, failure
):
    def refuse(descriptor: int) -> None:
        raise OSError(failure, os.strerror(failure))

    monkeypatch.setattr(os, "fsync", refuse)
    if failure == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            make_data_folder(tmp_path / "data")
    else:
        make_data_folder(tmp_path / "data")
