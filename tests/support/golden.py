"""Stores of a real broker (tests/golden): unpacked, with what the broker said of them."""

import json
import lzma
import tarfile
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "golden" / "rocketmq-5.3.3"


@lru_cache
def manifest(name: str) -> dict[str, Any]:
    return json.loads(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))


def unpack(name: str, folder: Path) -> Path:
    """The store, as it was on the broker's disk, in a folder of its own."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "store"


def tree(root: Path) -> dict[str, str]:
    """The hash of each file below, by its name."""
    return {
        path.relative_to(root).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
