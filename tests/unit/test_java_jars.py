"""The jars of a peer in Java: what is missing is named, so that a skipped test says why."""

from pathlib import Path

import pytest

from benchmarks.generator import NotOffered
from benchmarks.peers import java


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_tool_that_is_missing_is_named(tmp_path, monkeypatch):
    for name in ("java", "javac"):
        tool(tmp_path, name, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NotOffered, match="needs mvn"):
        java.jars("peer", ["a:b:1"])


def test_what_maven_says_of_artifacts_that_it_does_not_find_is_kept(tmp_path, monkeypatch):
    for name in ("java", "javac"):
        tool(tmp_path, name, "exit 0")
    tool(tmp_path, "mvn", "echo '[ERROR] Network is unreachable'; echo more; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "BUILT", tmp_path / "built")

    with pytest.raises(NotOffered, match=r"did not find a:b:1: \[ERROR\] Network is unreachable$"):
        java.jars("peer", ["a:b:1"])
