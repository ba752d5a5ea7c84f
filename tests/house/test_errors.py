"""The tree of errors at the head of storage/errors.py is the tree of its classes."""

import re

from storage import errors
from storage.errors import MessagingError

INDENT = 4  # columns from one level of the drawing to the next


def drawn(tree: str) -> dict[str, str | None]:
    """Each class of the drawing, and the class that it is drawn under."""
    found: dict[str, str | None] = {}
    path: list[str] = []
    for line in tree.splitlines():
        match = re.fullmatch(r"( {4}(?:│   |    |├── |└── )*)([A-Z].*)", line)
        if match is None:
            continue
        level = len(match[1]) // INDENT - 1
        names = re.match(r"(?:[A-Z]\w+(?: {1,2}(?=[A-Z])|\b))+", match[2])
        assert names is not None
        for name in names[0].split():
            found[name] = path[level - 1] if level else None
        path[level:] = [names[0].split()[-1]]
    return found


def defined(kind: type, parent: str | None = None) -> dict[str, str | None]:
    found = {kind.__name__: parent}
    for child in kind.__subclasses__():
        found |= defined(child, kind.__name__) if child.__module__ == errors.__name__ else {}
    return found


def test_the_tree_of_errors_has_each_error_under_its_kind():
    assert drawn(errors.__doc__ or "") == defined(MessagingError)
