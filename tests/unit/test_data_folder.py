"""The data folder of a service is on disk before anything in it is acknowledged."""

import errno
import os
import sqlite3
from contextlib import closing

import pytest

from app.disk.data_folder import CannotBeMade, make_data_folder


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


def test_a_directory_with_a_store_of_another_program_is_refused_and_stays_as_it_is(tmp_path):
    (tmp_path / "store" / "index").mkdir(parents=True)
    (tmp_path / "store" / "cart.js").write_text("export {}")

    with pytest.raises(
        CannotBeMade, match=r"has no commitlog, and cart\.js is not part of a store"
    ):
        make_data_folder(tmp_path)

    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == ["store", "store/cart.js", "store/index"]


@pytest.mark.parametrize(
    "names",
    [
        ["making", "lock", "lost+found", ".snapshot"],  # a first start that was killed, a mount
        ["commitlog", "notes-of-an-operator"],
        ["repair-2026-11-30", "index"],  # the log was lost
        ["dledger-n0"],  # a broker's, which is refused by its name
    ],
)
def test_a_directory_with_a_store_that_can_be_ours_is_taken(tmp_path, names):
    for name in names:
        (tmp_path / "store" / name).mkdir(parents=True)

    make_data_folder(tmp_path)


def test_a_directory_with_a_database_of_another_program_is_refused_and_stays_as_it_is(tmp_path):
    with closing(sqlite3.connect(tmp_path / "registry.db")) as connection:
        connection.execute("CREATE TABLE mine (number INTEGER)")
    before = (tmp_path / "registry.db").read_bytes()

    with pytest.raises(CannotBeMade, match=r"registry\.db is a database of another program"):
        make_data_folder(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["registry.db"]
    assert (tmp_path / "registry.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"a registry that is damaged"])
def test_a_registry_that_is_empty_or_damaged_may_be_ours(tmp_path, content):
    (tmp_path / "registry.db").write_bytes(content)

    make_data_folder(tmp_path)
