"""The clients in other languages are product: plain words, lines of the usual width, and nothing
that was generated or that names where a package was fetched from.
"""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tests.house.test_words import private_words

CODE = (".ts", ".go", ".java", ".rs", ".js", ".css", ".html")
WIDTH = 100


def committed(*suffixes: str) -> list[Path]:
    """The files of clients/, console/ and openapi/clients/ that are committed, or are about to be."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    done = subprocess.run(
        [*command, "clients", "console", "openapi/clients"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / name for name in done.stdout.splitlines()]
    return [path for path in paths if path.name.endswith(suffixes) and path.exists()]


@pytest.mark.parametrize("suffix", CODE)
def test_the_code_of_clients_has_no_private_words_and_no_wide_lines(suffix):
    for path in committed(suffix):
        lines = path.read_text("utf-8").expandtabs(4).splitlines()

        assert private_words(path) == []
        assert [line for line in lines if len(line) > WIDTH and "go:generate" not in line] == [], (
            path
        )


def test_every_client_has_the_license_and_the_version_of_the_service():
    service = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    package = json.loads((ROOT / "clients" / "typescript" / "package.json").read_text("utf-8"))
    pom = (ROOT / "clients" / "java" / "pom.xml").read_text("utf-8")
    license_text = (ROOT / "LICENSE").read_text("utf-8")

    assert package["version"] == service
    assert f"<artifactId>client</artifactId>\n  <version>{service}</version>" in pom
    for folder in (ROOT / "clients").iterdir():
        assert (folder / "LICENSE").read_text("utf-8") == license_text, folder


def test_no_generated_source_is_committed():
    folders = {"generated", "dist", "node_modules", "target", "build"}

    assert [path for path in committed("") if folders & set(path.relative_to(ROOT).parts)] == []


def test_lock_files_pin_content_and_do_not_say_where_it_was_fetched_from():
    locks = committed("package-lock.json")

    assert locks
    for path in locks:
        packages = json.loads(path.read_text("utf-8"))["packages"]
        for name, package in packages.items():
            assert "resolved" not in package, f"{path}: {name}"
            assert name == "" or package["integrity"].startswith("sha512-"), f"{path}: {name}"


def test_the_python_tests_of_clients_are_in_tests():
    names = [path for path in committed(".py") if path.name.startswith(("test_", "conftest"))]

    assert names == []
