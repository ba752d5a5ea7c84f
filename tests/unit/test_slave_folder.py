"""The folder of a slave of RocketMQ: files of a service, and settings as its log needs them."""

import shutil
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


def test_a_folder_of_a_broker_whose_log_is_lost_gets_the_files(data, tmp_path):
    config = data / "store/config"
    (config / "topics.json").write_text('{"topicConfigTable": {}, "writtenBy": "EscrowMQ"}')
    (config / "consumerOffset.json").write_text('{"offsetTable": {}, "writtenBy": "EscrowMQ"}')
    folder = tmp_path / "slave"
    for name in ("compaction", "config", "consumequeue_ext", "batchconsumequeue"):
        (folder / name).mkdir(parents=True)
    (folder / "config/topics.json").touch()
    (folder / "config/consumerOffset.json").write_text('{"offsetTable":{"t1@g":{0:1}}}')

    written = write_slave_folder(data, folder)

    assert sorted(written.files) == ["consumerOffset.json", "topics.json"]
    for name in written.files:
        assert (folder / "config" / name).read_bytes() == (config / name).read_bytes()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("index.html", "index.html is not part of a store"),
        ("config/topics.json", "config/topics.json is not a file of RocketMQ"),
        ("store/commitlog/00000000000000000000", "store is not part of a store"),
    ],
)
def test_a_folder_of_another_program_is_refused_and_stays_as_it_is(data, tmp_path, path, reason):
    file = tmp_path / "slave" / path
    file.parent.mkdir(parents=True)
    file.write_text('{"topics": ["of a reading club"]}')

    with pytest.raises(TargetRefused, match=reason):
        write_slave_folder(data, tmp_path / "slave")

    assert file.read_text() == '{"topics": ["of a reading club"]}'
    assert [path for path in (tmp_path / "slave").rglob("*") if path.is_file()] == [file]


def test_the_store_of_a_service_is_refused_and_stays_as_it_is(data, tmp_path):
    other = tmp_path / "other/store"
    shutil.copytree(data / "store", other)
    (other / "config/topics.json").write_text("of another service")
    (other / "registry-id").write_text("its registry")

    with pytest.raises(TargetRefused, match="is the store of a service"):
        write_slave_folder(data, other)

    assert (other / "config/topics.json").read_text() == "of another service"


def test_what_is_no_data_directory_or_has_no_topics_yet_is_refused(data, tmp_path):
    with pytest.raises(StoreRefused, match="is no data directory"):
        write_slave_folder(tmp_path / "elsewhere", tmp_path / "slave")
    (data / "store/config/topics.json").unlink()
    with pytest.raises(StoreRefused, match="is not there yet"):
        write_slave_folder(data, tmp_path / "slave")
    with pytest.raises(TargetRefused):
        write_slave_folder(data, data / "slave")
    assert not (tmp_path / "slave").exists()
