"""Wrong usage of a command is status 2, a failure is 3, and neither is a traceback."""

import pytest
from typer.testing import CliRunner

import cli.main


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
        (["dump", __file__], "is none of"),
        (["store", "dump", __file__], "is none of"),
    ],
)
def test_what_no_command_can_take_is_wrong_usage(command, reason):
    status, said = run(*command)

    assert (status, reason in " ".join(said.replace("│", "").split())) == (2, True)


def test_a_document_that_cannot_be_written_is_no_success(tmp_path):
    status, said = run("openapi", "--out", str(tmp_path))

    assert status == 3
    assert said.startswith("The document could not be written: ")
