"""Errors of the operating system in words."""

import os
import re

_NUMBER = re.compile(r"\[Errno (-?[0-9]+)\] ", re.IGNORECASE)  # as Python and pyarrow write it


def without_number(text: str) -> str:
    """Leave out the numbers of the errors that a text names, where their meaning follows."""
    return _NUMBER.sub(_unless_of_a_path, text)


def _unless_of_a_path(found: re.Match[str]) -> str:
    number, behind = int(found[1]), found.string[found.end() :]
    # negative: of a name that cannot be resolved, which has texts of its own
    is_error = number < 0 or behind.startswith(os.strerror(number))
    return "" if is_error else found[0]
