"""The progress of an audit on the terminal, and the temporary log of Spark."""

import os
import re
import stat
from io import StringIO

import pytest
import typer
from rich.console import Console

from audit.report import progress
from cli.audit.common import log_of_spark
from cli.common import Exit
from tests.support.http import until


@pytest.mark.parametrize("is_terminal", [False, True])
def test_tasks_are_counted_once_some_are_known(monkeypatch, is_terminal):
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.01)
    monkeypatch.setattr(progress, "_LOOK_SECONDS", 0.01)
    shown, known = StringIO(), [(0, 0)]
    console = Console(file=shown, force_terminal=is_terminal, width=100)

    with progress.shown(lambda: known[0], "reading", console=console):
        until(lambda: shown.getvalue().count("reading") > 2, "it is shown without a task")
        before = shown.getvalue()
        known[0] = (3, 7)
        until(lambda: re.search(r"3( of |/)7 tasks", shown.getvalue()), "tasks are counted")

    assert not re.search(r"tasks|None", before)


def test_why_spark_gave_up_is_shown_from_its_log(tmp_path, capsys):
    """The error that reaches the command says only that its SparkContext was stopped."""
    log = tmp_path / "spark.log"
    lines = (
        "WARN StandaloneAppClient: Failed to connect to master m:7077\n"
        "ERROR StandaloneSchedulerBackend: Application has been killed. "
        "Reason: All masters are unresponsive! Giving up.\n"
    )

    def fails(said: str) -> None:
        with log_of_spark(log), log.open("a") as file:
            file.write(said)
            raise typer.Exit(Exit.NOT_CARRIED_OUT)

    for said, reason in (
        (lines, ["Spark has ended: All masters are unresponsive! Giving up."]),
        ("ERROR another\n", []),
    ):
        with pytest.raises(typer.Exit):
            fails(said)
        where = f"What Spark had to say is in {log}"
        assert capsys.readouterr().err.splitlines() == [*reason, where]


def test_the_temporary_log_of_spark_is_a_new_file_of_this_user_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with log_of_spark(None) as one, log_of_spark(None) as other:
        found = [one.stat(), other.stat()]

        assert one != other
        assert {one.parent, other.parent} == {tmp_path}

    assert [(stat.S_IMODE(each.st_mode), each.st_uid) for each in found] == [
        (0o600, os.getuid())
    ] * 2
    assert list(tmp_path.iterdir()) == []
