"""Peers in Java: their jars by Maven coordinates, and the load programs of
`benchmarks/peers/java/`, compiled against them.
"""

import fcntl
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.generator import BUILT, Driver, NotOffered

SOURCE = Path(__file__).parent / "java"


def jars(name: str, coordinates: Sequence[str]) -> str:
    """A class path of these artifacts (group:artifact:version) and all that they need.

    Raises NotOffered.
    """
    missing = [tool for tool in ("java", "javac", "mvn") if not shutil.which(tool)]
    if missing:
        raise NotOffered(f"needs {', '.join(missing)}")
    folder = BUILT / "peers" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # workers of pytest want the same jars at once
        _fetch(folder, coordinates)
    return str(folder / "lib" / "*")


def _fetch(folder: Path, coordinates: Sequence[str]) -> None:
    pom = _pom(coordinates)
    kept = folder / "pom.xml"
    if kept.exists() and kept.read_text() == pom and (folder / "complete").exists():
        return
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    kept.write_text(pom)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if made.returncode:
        why = made.stdout.strip().partition("\n")[0]
        raise NotOffered(f"Maven did not find {', '.join(coordinates)}: {why}")
    (folder / "complete").touch()


def load(
    name: str,
    class_path: str,
    program: str,
    arguments: Sequence[str],
    *,
    options: Sequence[str],
    log: Path,
) -> Driver:
    """The load program, compiled now, started on the load's core."""
    classes = BUILT / "peers" / name / "classes"
    sources = [str(SOURCE / f"{each}.java") for each in ("Load", program)]
    subprocess.run(
        ["javac", "-nowarn", "-d", str(classes), "-cp", class_path, *sources], check=True
    )
    command = [
        "java",
        "-Xms512m",
        "-Xmx512m",
        *options,
        "-cp",
        f"{classes}:{class_path}",
        program,
        *arguments,
    ]
    return Driver(command, log=log)


def _pom(coordinates: Sequence[str]) -> str:
    dependencies = []
    for one in coordinates:
        parts = zip(("groupId", "artifactId", "version"), one.split(":"), strict=True)
        dependencies.append(
            "<dependency>"
            + "".join(f"<{tag}>{escape(part)}</{tag}>" for tag, part in parts)
            + "</dependency>"
        )
    own = (
        "<modelVersion>4.0.0</modelVersion><groupId>peers</groupId><artifactId>"
        "peers</artifactId><version>1</version>"
    )
    return f"<project>{own}<dependencies>{''.join(dependencies)}</dependencies></project>\n"
