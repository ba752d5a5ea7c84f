"""`escrowmq store segments` and `dump`: what they show of a store, and that damage ends neither."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cli.main
from storage.files.simulated import SimulatedDisk
from storage.formats import record as records
from storage.formats.names import file_name
from storage.local.options import LocalStoreOptions
from tests.support.builders import message
from tests.support.simulation import World

OPTIONS = LocalStoreOptions(
    segment_bytes=16_384, prepare_ahead_bytes=4_096, index_slots=64, index_file_entries=256
)
MESSAGES = 30


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """A store of two segments after an orderly close, copied from a simulated disk."""
    root: Path = tmp_path_factory.mktemp("data")

    async def write(world: World) -> None:
        opened = await world.open_store(OPTIONS)
        await opened.create_topic("orders", queue_count=1)
        for number in range(MESSAGES):
            await opened.append([message(b"x" * 600, message_id=f"m{number}", key=f"k{number}")])
        await opened.aclose()

    with World(SimulatedDisk(), 1) as world:
        world.call(write(world))
        for folder, names in world.disk._folders.items():
            for name, inode in names.live.items():
                path = root / folder.relative_to("/") / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(inode.live)
    return root / "data" / "store"


def output(*arguments: str | Path) -> str:
    done = CliRunner().invoke(cli.main.app, ["store", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_segments_are_listed_with_their_records_and_whether_they_are_sealed(store):
    first, second = output("segments", store).splitlines()[1:3]

    assert first.split()[0] == file_name(0)
    assert (first.split()[-2], second.split()[-2]) == ("yes", "no")
    assert int(first.split()[-1]) + int(second.split()[-1]) >= MESSAGES


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/orders/0", "index", "snapshots"])
def test_every_stored_file_is_printed_as_text(store, folder):
    for file in sorted((store / folder).iterdir()):
        assert output("dump", file).strip()


def test_the_key_index_is_printed_entry_by_entry(store):
    (file,) = (store / "index").iterdir()

    assert output("dump", file).count("key hash") == 2 * MESSAGES, (
        "the id and the key of each message"
    )


def test_a_dump_and_a_list_get_past_a_damaged_record(store, tmp_path):
    (tmp_path / "commitlog").mkdir()
    file = tmp_path / "commitlog" / file_name(0)
    raw = bytearray((store / "commitlog" / file_name(0)).read_bytes())
    whole = output("dump", store / "commitlog" / file_name(0))
    damaged_at = 2 * records.start(bytes(raw))[0] + 300
    raw[damaged_at] ^= 1
    file.write_bytes(raw)

    shown = output("dump", file)

    assert shown.count("orders/0/") == whole.count("orders/0/") - 1
    assert "bytes that are no whole unit" in shown
    assert "damaged at log offset" in output("segments", tmp_path)


REPORTING = ["verify", "repair", "segments", "recovery-report"]


@pytest.mark.parametrize("name", REPORTING)
def test_a_report_to_the_standard_output_is_alone_there(store, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(cli.main.app, ["store", name, str(store), "--json", "-"])

    assert json.loads(done.stdout) is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", REPORTING)
def test_a_report_that_cannot_be_written_is_said_in_a_sentence(store, name):
    full = CliRunner().invoke(cli.main.app, ["store", name, str(store), "--json", "/dev/full"])
    missing = CliRunner().invoke(cli.main.app, ["store", name, str(store), "--json", "/none/x"])

    assert (full.exit_code, missing.exit_code) == (3, 2)
    assert "the report could not be written" in full.stderr
    assert "No space left on device" in full.stderr
