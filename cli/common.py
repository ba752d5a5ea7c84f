"""The common parts of the commands: exit statuses, what they say, files at a path or a URI."""

import re
import sys
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path

import typer

from app.error_text import without_number
from audit.files.uris import is_uri, without_secrets
from audit.report.terminal import printable

LOCK = "pip install -r requirements-audit.lock"
_ERROR_CHARACTERS = 2_000
_JAVA_CALL = re.compile(r"\AAn error occurred while calling [^\n]*\n: ")  # as py4j writes it
_JAVA_FRAME = re.compile(r"\n\s+(?:at [^\n]+\([^\n]*\)|\.\.\. [0-9]+ more)(?=\n|\Z)")
_JAVA_CLASS = re.compile(r"^(Caused by: )?(?:[a-z]\w*\.)+([A-Z][\w$]*): ([^\n]+)", re.MULTILINE)
_CONTEXT_WAS_MADE = "\nThis stopped SparkContext was created at:"
_TRACEBACK = "Traceback (most recent call last)"
_PYTHON_ERROR = re.compile(r"\A(?:\w+\.)*(\w+)(?:\Z|:\s*)")  # as a traceback ends
# their texts say little without their names, being of a bug
_UNCLEAR = frozenset(
    "AssertionError AttributeError IndexError KeyError NameError StopIteration TypeError".split()
)


class Exit(IntEnum):
    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    NOT_CARRIED_OUT = 3
    NOT_BALANCED = 4
    STOPPED = 130  # as of a process that SIGINT ends


def needs(*packages: str, text: str) -> None:
    """End with NOT_CARRIED_OUT and the text where one of them is not installed."""
    if any(find_spec(package) is None for package in packages):
        say(text)
        raise typer.Exit(Exit.NOT_CARRIED_OUT)


def needs_pyarrow(why: str) -> None:
    needs("pyarrow", text=f"{why}: {LOCK}")


def check_file(where: str | None, option: str) -> None:
    """Wrong usage, where such a file cannot be written."""
    if where is None:
        return
    if is_uri(where):
        needs_pyarrow("A URI is written by pyarrow")
        check_folder(where, option, of_file=True)
        return
    file = Path(where)
    try:
        is_possible = file.parent.is_dir() and not file.is_dir()
    except OSError as error:
        raise typer.BadParameter(
            f"it cannot be written: {error.strerror}", param_hint=option
        ) from None
    if not is_possible:
        raise typer.BadParameter(
            f"{file} cannot be a file: {file.parent} is no folder, or it is one", param_hint=option
        )


def check_folder(uri: str, option: str, *, of_file: bool = False) -> None:
    """Make the folder, or the one that a file is to lie in: wrong usage, where that is not
    possible.
    """
    from audit.files import whole_files
    from audit.files.filesystems import filesystem_of

    try:
        filesystem, path = filesystem_of(uri)
        whole_files.make_folder(filesystem, path.rpartition("/")[0] if of_file else path)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(
            f"it cannot be written: {in_short(error)}", param_hint=option
        ) from None


def read_file(where: str) -> bytes:
    """Content of a path or a URI. Raises OSError, ValueError."""
    if not is_uri(where):
        return Path(where).read_bytes()
    from audit.files.filesystems import filesystem_of

    filesystem, path = filesystem_of(where)
    with filesystem.open_input_file(path) as file:
        data: bytes = file.read()
    return data


def write_whole(where: str, text: str) -> None:
    """All of it or nothing, to a path or a URI."""
    from audit.files import local_files as files

    if not is_uri(where):
        files.write_whole(where, text.encode("utf-8"))
        return
    from pyarrow.fs import LocalFileSystem

    from audit.files import whole_files
    from audit.files.filesystems import filesystem_of

    filesystem, path = filesystem_of(where)
    if isinstance(filesystem, LocalFileSystem):
        files.write_whole(path, text.encode("utf-8"))
    else:
        whole_files.write_beside_others(filesystem, path, text.encode("utf-8"))


def in_short(error: Exception) -> str:
    """The reason, for a person.

    Spark's errors go on for pages; what went wrong in a worker follows the last of its
    tracebacks. Java's lines say where in Spark, which helps no user.
    """
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return _printable(text)
    kind = type(error).__name__
    text = str(error).partition("\nJVM stacktrace")[0].partition(_CONTEXT_WAS_MADE)[0].strip()
    text, is_of_java = _JAVA_CALL.subn("", text)
    text = _JAVA_FRAME.sub("", text).strip()
    _, traceback, behind = text.rpartition(_TRACEBACK)
    if traceback:
        text = next(
            (line for line in behind.splitlines()[1:] if line and not line[0].isspace()), text
        )
        if raised := _PYTHON_ERROR.match(text):
            kind, text = raised[1], text[raised.end() :]
    elif is_of_java:
        text = _JAVA_CLASS.sub(r"\1\3 (\2)", text)
    if text and kind not in _UNCLEAR:
        return _printable(text)
    return f"{_printable(text) or 'no reason is given'} ({kind})"


def _printable(text: str) -> str:
    shown = without_secrets(without_number(text))[:_ERROR_CHARACTERS]
    return "\n".join(map(printable, shown.splitlines()))


def say(text: str) -> None:
    """Write a line for a person to standard error; what went wrong is in words there."""
    sys.stderr.write(f"{without_number(text)}\n")
