"""Places: a path on this machine, or a URI that pyarrow knows."""

import os
import re

# What stands before the host of a URI: it is a secret of its author.
_USER_INFO = re.compile(r"(?<=://)(?:[^/@\s]*|[^/@\s:]*:(?!\d+/)[^@\s]*)@")


def is_uri(text: str) -> bool:
    return "://" in text or text.startswith("file:")


def absolute(place: str) -> str:
    """The same place for a process with another working directory, as Spark's workers have one."""
    return place if is_uri(place) else os.path.abspath(place)


def below(uri: str, name: str) -> str:
    """The path or URI of what is called so in that folder."""
    place, mark, query = uri.partition("?") if is_uri(uri) else (uri, "", "")
    return f"{place.rstrip('/')}/{name}{mark}{query}"


def without_secrets(text: str) -> str:
    """The text without secrets: an access key and its secret, or a user and a password, are removed
    from each URI.
    """
    return _USER_INFO.sub("***@", text)
