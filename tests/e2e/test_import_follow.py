"""`escrowmq import follow` as a command: what it says, and its exit status. What is copied is in
`tests/unit/test_broker_follower.py`, a real broker in `tests/rocketmq/`.
"""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from app.rocketmq.followed_log import NOTE
from storage.files.vfs import OsVfs
from storage.local.data_directory import DataDirectory
from tests.support.rocketmq_master import ScriptedMaster
from tests.support.server import clean_environment, reserved_port

WRONG_USAGE, NOT_CARRIED_OUT, IN_USE, REFUSED = 2, 3, 73, 78
PROGRAM = Path(sys.executable).with_name("escrowmq")


async def follow(port: int, folder: Path, *more: str | Path) -> tuple[int, str]:
    """The exit status, and what was printed."""
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "import", "follow", "--from", f"127.0.0.1:{port}", "--to", folder, *more),
        env=clean_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_an_empty_broker_is_taken_over(tmp_path):
    data, report = tmp_path / "data", tmp_path / "report.json"
    async with ScriptedMaster(segment_bytes=1 << 20) as master:
        master.append(bytes(1 << 20))  # a segment without a record
        status, said = await follow(
            master.port, tmp_path / "copy", "--take-over", data, "--json", report
        )
    assert status in (0, 1), said
    assert "Stop the broker now" in said
    assert json.loads(report.read_text())["report"] == "store_import"
    assert (data / "registry.db").exists()


async def test_a_broker_that_does_not_answer_is_said(tmp_path):
    with reserved_port() as port:
        status, said = await follow(port.getsockname()[1], tmp_path / "copy")
    assert status == NOT_CARRIED_OUT
    assert "could not be followed" in said
    assert "Traceback" not in said


async def test_a_broker_whose_port_for_slaves_does_not_answer_is_tried_again_with_another(tmp_path):
    folder, data = tmp_path / "copy", tmp_path / "data"
    async with ScriptedMaster(segment_bytes=1 << 20) as master:
        master.append(bytes(1 << 20))
        with reserved_port() as port:
            wrong = str(port.getsockname()[1])
            status, said = await follow(master.port, folder, "--ha-port", wrong)
        assert status == NOT_CARRIED_OUT, said
        status, said = await follow(master.port, folder, "--take-over", data)
    assert status in (0, 1), said


async def test_a_folder_with_something_else_is_left_alone(tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    async with ScriptedMaster(b"x" * 100) as master:
        status, said = await follow(master.port, folder)
        assert (status, [path.name for path in folder.iterdir()]) == (REFUSED, ["mine"]), said
        status, said = await follow(
            master.port, tmp_path / "other", "--take-over", tmp_path / "other/data"
        )
        assert status == REFUSED, said
        status, said = await follow(master.port, tmp_path / "other", "--take-over", folder)
        assert status == REFUSED, said
    assert not (tmp_path / "other").exists()


async def test_a_folder_is_one_command_s_at_a_time(tmp_path):
    folder = tmp_path / "copy"
    other = DataDirectory(OsVfs(), folder)
    (folder / NOTE).touch()
    async with ScriptedMaster(b"x" * 100) as master:
        status, said = await follow(master.port, folder)
    other.close()
    assert status == IN_USE, said


@pytest.mark.parametrize(
    "wrong",
    [("--json", "-"), ("--from", "broker"), ("--ha-port", "0")],
    ids=["a report of nothing", "no port", "port 0"],
)
async def test_wrong_usage_is_said(tmp_path, wrong):
    status, said = await follow(1, tmp_path / "copy", *wrong)
    assert status == WRONG_USAGE
    assert wrong[0] in said
