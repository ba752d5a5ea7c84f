"""Manifests on any file system that pyarrow knows (`manifests.py` describes them)."""

import json
from typing import Any

from pyarrow import fs

from audit.files import whole_files
from audit.log import manifests
from audit.log.manifests import ENDING


def write(filesystem: fs.FileSystem, path: str, manifest: dict[str, Any]) -> None:
    """Beside the file at this path, which is there and on disk."""
    whole_files.write(
        filesystem, path + ENDING, (json.dumps(manifest, indent=2) + "\n").encode("utf-8")
    )


def read(filesystem: fs.FileSystem, path: str, *, size_in: str) -> dict[str, Any] | None:
    """The manifest at this path; None if there is none, it cannot be parsed, or it states another
    size than the file has. `size_in`: the field that states it.
    """
    about, file = filesystem.get_file_info([path + ENDING, path])
    if about.type is not fs.FileType.File or file.type is not fs.FileType.File:
        return None
    with filesystem.open_input_file(about.path) as stream:
        raw: bytes = stream.read()
    return manifests.parse(raw, file.size, size_in=size_in)
