"""Each error that ends a copy of a store has one exit status and one sentence in all commands."""

import json

import pytest

from app.backup.make import CopyDiffers
from app.backup.manifest import BackupDamaged, BackupRefused
from app.settings import ConfigurationError
from app.store_moves.disk_space import DiskFull
from app.store_moves.opened_copy import StoreDamaged, StoreRefused
from app.store_moves.work_folder import TargetRefused
from cli.store.operation import Operation, carry_out
from storage.errors import CorruptRecord, DirectoryInUse, RegistryUnavailable

EXPORT = Operation(
    "export", "Stop the service first", lambda: "Nothing is left in /b", "Run it as root"
)


def _report(made: object) -> int:
    raise AssertionError(f"{made} was made")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigurationError("no such setting"), 78, "escrowmq: no such setting"),
        (TargetRefused("/b is not empty"), 78, "/b is not empty"),
        (KeyboardInterrupt(), 130, "Stopped. Nothing is left in /b"),
        (DiskFull("The disk is full"), 74, "The disk is full. Nothing is left in /b"),
        (DirectoryInUse("/a", 7), 73, "Stop the service first: /a is in use by process 7"),
        (RegistryUnavailable("no table"), 75, "The registry could not be read: no table"),
        (BackupDamaged("a piece is gone"), 65, "The backup is damaged: a piece is gone"),
        (CopyDiffers("at offset 3"), 65, "The backup is damaged: at offset 3"),
        (StoreDamaged("in /a"), 65, "The stored data is damaged: in /a"),
        (
            CorruptRecord(None, 3, "no checksum"),
            65,
            f"The stored data is damaged: {CorruptRecord(None, 3, 'no checksum')}",
        ),
        (PermissionError(13, "Denied", "/a"), 77, "/a: Denied. Run it as root"),
        (FileNotFoundError(2, "Gone", "/a"), 3, "The export could not be carried out: /a: Gone"),
    ],
)
def test_each_error_has_an_exit_status_and_a_sentence(error, status, said, capsys):
    def fail() -> None:
        raise error

    assert carry_out(EXPORT, fail, _report, None) == status
    assert capsys.readouterr().err == f"{said}\n"


@pytest.mark.parametrize(
    ("error", "sentences"),
    [(StoreRefused(["One.", "Two."]), ["One.", "Two."]), (BackupRefused("No."), ["No."])],
)
def test_the_report_of_what_is_refused_has_the_reasons(error, sentences, tmp_path, capsys):
    def refuse() -> None:
        raise error

    assert carry_out(EXPORT, refuse, _report, tmp_path / "report.json") == 78
    assert json.loads((tmp_path / "report.json").read_text()) == {
        "report": "store_export",
        "refused": sentences,
    }
    assert capsys.readouterr().err.splitlines() == sentences


def test_an_error_of_the_program_itself_is_no_outcome():
    def fail() -> None:
        raise AssertionError

    with pytest.raises(AssertionError):
        carry_out(EXPORT, fail, _report, None)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_copy_that_is_whole_is_not_called_stopped_where_its_report_is(error, capsys):
    def show(made: int) -> int:
        raise error

    with pytest.raises(type(error)):
        carry_out(EXPORT, lambda: 7, show, None)
    assert capsys.readouterr().err == ""
