"""Backups of a data directory on S3: made, continued, restored and removed by the command."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.s3_server import SECRET, S3Server
from tests.unit.test_backup import log_of, written


@pytest.fixture(scope="module")
def s3(tmp_path_factory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


def store(*arguments: str | Path) -> str:
    """The output of a run of `escrowmq store`."""
    done = subprocess.run(
        [Path(sys.executable).with_name("escrowmq"), "store", *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_backup_on_s3_is_made_continued_restored_and_removed(tmp_path, s3):
    data, uri = tmp_path / "data", s3.uri("backups")
    written(data, 20)
    said = store("backup", "--from", data, "--to", uri)
    first = set(s3.names("backups"))
    log = written(data, 40)
    s3.asked()
    said += store("backup", "--from", data, "--to", uri)
    rewritten = {
        one.path.partition("/backups/")[2] for one in s3.asked() if one.method in ("PUT", "POST")
    }

    assert not first & rewritten
    said += store("restore", "--from", uri, "--to", tmp_path / "new")
    assert log_of(tmp_path / "new") == log_of(data)
    until = ["--until-offset", log.borders[30]]
    said += store("restore", "--from", uri, "--to", tmp_path / "point", *until)
    assert log_of(tmp_path / "point") == log_of(data)[: log.borders[30]]
    said += store("backup", "--from", data, "--to", uri, "--keep", "1")
    assert len([name for name in s3.names("backups") if name.startswith("backups/")]) == 1
    said += store("backups", uri)
    assert SECRET not in said
