"""Wrong usage of a command is status 2, a failure is 3, and neither is a traceback."""

import socket

import pytest
from typer.testing import CliRunner

import cli.main
from app.settings import ConfigurationError, load


def run(*command: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli.main.app, list(command))
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["replica", "promote", "--url", "machine:8080"], "machine:8080 is no http address"),
        (["replica", "promote", "--url", "http://[shop-2"], "has a host that cannot be"),
        (["replica", "promote", "--url", "http://a,http://b"], "has a host that cannot be"),
        (["replica", "promote", "--url", "http://shop:x"], "is no http address"),
        (["store", "recovery-report", "--url", "machine:8080"], "is no http address"),
        (["store", "recovery-report", "--url", "http://[shop-2"], "has a host that cannot be"),
        (["import", "offsets", "--from", ".", "--to", "machine:8080"], "is no http address"),
        (
            ["group", "reset", "g", "--topic", "t", "--to", "latest", "--url", "m"],
            "no http address",
        ),
        (
            [
                "group",
                "reset",
                "g",
                "--topic",
                "t",
                "--to",
                "latest",
                "--url",
                "http://a,http://[b",
            ],
            "has a host that cannot be",
        ),
        (["serve", "--data-dir", "", "--config", "/nowhere.toml"], "an empty path"),
        (["node", "--data-dir", "", "--config", "/nowhere.toml"], "an empty path"),
        (["replica", "follow", "--data-dir", "", "--config", "/nowhere.toml"], "an empty path"),
        (["replica", "status", "--data-dir", ""], "an empty path"),
        (["replica", "promote", "--data-dir", ""], "an empty path"),
        (["replica", "rocketmq-config", "--data-dir", "", "--out", "."], "an empty path"),
        (["replica", "rocketmq-config", "--data-dir", ".", "--out", ""], "an empty path"),
        (["store", "backup", "--from", ".", "--to", ""], "an empty path"),
        (["store", "restore", "--from", ".", "--to", ""], "an empty path"),
        (["store", "restore", "--from", "", "--to", "."], "an empty path"),
        (["store", "import", "--from", ".", "--to", ""], "an empty path"),
        (["store", "export", "--from", ".", "--to", ""], "an empty path"),
        (["import", "follow", "--from", "broker:10912", "--to", ""], "an empty path"),
        (["dump", __file__], "is none of"),
        (["store", "dump", __file__], "is none of"),
    ],
)
def test_what_no_command_can_take_is_wrong_usage(command, reason):
    status, said = run(*command)

    assert (status, reason in " ".join(said.replace("│", "").split())) == (2, True)


def test_a_variable_with_an_empty_data_directory_is_a_wrong_setting(monkeypatch):
    monkeypatch.setenv("ESCROWMQ_DATA_DIR", "")

    with pytest.raises(ConfigurationError, match=r"ESCROWMQ_DATA_DIR: an empty path"):
        load()


def test_a_service_that_cannot_be_reached_is_named_with_the_reason():
    with socket.socket() as taken:  # nothing listens there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        status, said = run("store", "recovery-report", "--url", url)

    assert status == 3
    assert said.startswith(f"There is no report: ConnectionError: {url} cannot be reached: [Errno")
    assert "urlopen" not in said


def test_a_document_that_cannot_be_written_is_no_success(tmp_path):
    status, said = run("openapi", "--out", str(tmp_path))

    assert status == 3
    assert said.startswith("The document could not be written: ")
