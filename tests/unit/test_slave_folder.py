"""The folder of a slave of RocketMQ: files of a service, and settings as its log needs them."""

from pathlib import Path

import pytest

from app.store_moves.opened_copy import StoreRefused
from app.store_moves.slave_folder import write_slave_folder
from app.store_moves.work_folder import TargetRefused
from storage.errors import DirectoryInUse
from storage.files.vfs import OsVfs
from storage.local.data_directory import DataDirectory


@pytest.fixture
def data(tmp_path) -> Path:
    folder = tmp_path / "data"
    (folder / "store/commitlog").mkdir(parents=True)
    with (folder / "store/commitlog/00000000000000000000").open("wb") as segment:
        segment.truncate(1 << 20)
    (folder / "store/config").mkdir()
    (folder / "store/config/topics.json").write_text("{}")
    (folder / "store/config/topics.json.bak").write_text("old")
    return folder


def test_the_folder_has_the_files_and_its_settings_are_those_of_the_log(data, tmp_path):
    folder = tmp_path / "slave"
    written = write_slave_folder(data, folder)
    assert [path.name for path in folder.iterdir()] == ["config"]
    assert [path.name for path in (folder / "config").iterdir()] == written.files == ["topics.json"]
    assert written.settings["brokerRole"] == "SLAVE"
    assert written.settings["storePathRootDir"] == str(folder)
    assert written.settings["mappedFileSizeCommitLog"] == str(1 << 20)


def test_a_slave_that_is_stopped_gets_newer_files_and_keeps_its_log(data, tmp_path):
    folder = tmp_path / "slave"
    write_slave_folder(data, folder)
    (folder / "commitlog").mkdir()
    (folder / "commitlog/00000000000000000000").write_bytes(b"log")
    (data / "store/config/topics.json").write_text('{"new": 1}')
    write_slave_folder(data, folder)
    assert (folder / "config/topics.json").read_text() == '{"new": 1}'
    assert (folder / "commitlog/00000000000000000000").read_bytes() == b"log"


def test_the_folder_of_a_slave_that_runs_is_left_alone(data, tmp_path):
    folder = tmp_path / "slave"
    folder.mkdir()
    running = DataDirectory(OsVfs(), folder)
    with pytest.raises(DirectoryInUse):
        write_slave_folder(data, folder)
    running.close()
    assert not (folder / "config/topics.json").exists()


def test_what_is_no_data_directory_or_has_no_topics_yet_is_refused(data, tmp_path):
    with pytest.raises(StoreRefused, match="is no data directory"):
        write_slave_folder(tmp_path / "elsewhere", tmp_path / "slave")
    (data / "store/config/topics.json").unlink()
    with pytest.raises(StoreRefused, match="is not there yet"):
        write_slave_folder(data, tmp_path / "slave")
    with pytest.raises(TargetRefused):
        write_slave_folder(data, data / "slave")
    assert not (tmp_path / "slave").exists()
