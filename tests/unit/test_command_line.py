"""Wrong usage of a command is status 2, a failure is 3, and neither is a traceback."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

import cli.main
from app.settings import ConfigurationError, load
from cli.common import in_short, say
from storage.errors import StoreClosed


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
        (["serve", "--data-dir", "  ", "--config", "/nowhere.toml"], "an empty path"),
        (["store", "backup", "--from", ".", "--to", " "], "an empty path"),
        (["openapi", "--out", ""], "an empty path"),
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


@pytest.mark.parametrize("path", ["", " ", "\t"])
def test_a_variable_with_an_empty_data_directory_is_a_wrong_setting(path, monkeypatch):
    monkeypatch.setenv("ESCROWMQ_DATA_DIR", path)

    with pytest.raises(ConfigurationError, match=r"ESCROWMQ_DATA_DIR: an empty path"):
        load()


def test_a_service_that_cannot_be_reached_is_named_with_the_reason():
    with socket.socket() as taken:  # nothing listens there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        status, said = run("store", "recovery-report", "--url", url)

    assert status == 3
    assert said == f"There is no report: {url} cannot be reached: Connection refused\n"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "has not answered: Remote end closed connection without response"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "whole HTTP response: SSH-2.0-OpenSSH_9.6"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "whole HTTP response: IncompleteRead"),
    ],
)
def test_a_service_that_breaks_off_or_speaks_no_http_is_named_with_the_reason(sent, reason):
    with answering(sent) as url:
        status, said = run("store", "recovery-report", "--url", url)

    assert status == 3
    assert said.startswith("There is no report: ")
    assert url in said
    assert reason in said


def test_a_service_that_does_not_answer_is_named_with_the_reason(monkeypatch):
    monkeypatch.setattr("cli.store.recovery._TIMEOUT_SECONDS", 0.2)
    with answering(None) as url:
        status, said = run("store", "recovery-report", "--url", url)

    assert status == 3
    assert said.startswith(f"There is no report: {url} has not answered: timed out")


@contextmanager
def answering(sent: bytes | None) -> Iterator[str]:
    """The URL of a server that reads one request, sends this and closes; None: it is silent."""
    closed = threading.Event()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            if sent is None:
                closed.wait()
            else:
                connection.sendall(sent)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            closed.set()
            thread.join()


def test_a_document_that_cannot_be_written_is_no_success(tmp_path):
    status, said = run("openapi", "--out", str(tmp_path))

    assert status == 3
    assert said == f"The document could not be written: {tmp_path}: Is a directory\n"


def test_a_line_of_a_command_has_what_went_wrong_in_words(capsys):
    refused = ConnectionRefusedError(111, "Connection refused")
    of_pyarrow = OSError("Cannot open '/a'. Detail: [errno 13] Permission denied")

    say(f"node-2: {refused}")
    say(f"the copy ends: {PermissionError(13, 'Permission denied', '/a')}")
    say(f"no audit: {of_pyarrow}")

    assert capsys.readouterr().err.splitlines() == [
        "node-2: Connection refused",
        "the copy ends: Permission denied: '/a'",
        "no audit: Cannot open '/a'. Detail: Permission denied",
    ]


_OF_A_WORKER = 'Job aborted: Traceback (most recent call last):\n  File "a.py", line 1, in run\n'


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("a log has no end"), "a log has no end"),
        (StoreClosed("the store is closed"), "the store is closed"),
        (KeyError("topic"), "'topic' (KeyError)"),
        (AttributeError("no attribute 'end'"), "no attribute 'end' (AttributeError)"),
        (TimeoutError(), "no reason is given (TimeoutError)"),
        (FileNotFoundError(2, "No such file or directory", "/a"), "/a: No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError(f"{_OF_A_WORKER}shop.Late: orders is late"), "orders is late"),
        (RuntimeError(f"{_OF_A_WORKER}KeyError: 'topic'"), "'topic' (KeyError)"),
        (RuntimeError(f"{_OF_A_WORKER}AssertionError"), "no reason is given (AssertionError)"),
    ],
)
def test_the_class_of_an_error_is_shown_behind_its_text_if_at_all(error, shown):
    assert in_short(error) == shown
