"""The registry as files, for those who copy a data directory while its service runs."""

import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from app.registry.database import refuse_later
from storage.files import durable
from storage.files.vfs import ReadOnlyVfs

REGISTRY, REGISTRY_ID = "registry.db", "store/registry-id"

_SELECT_REVISIONS = "SELECT version_num FROM alembic_version"


def read_files(data_dir: Path) -> dict[str, bytes]:
    """The registry, if it is a file, as of one moment; and the identity of the registry that the
    store knows. By their names in the data directory.

    Raises sqlite3.DatabaseError, OSError.
    """
    found = {}
    identity = durable.read_whole(ReadOnlyVfs(), data_dir / REGISTRY_ID)
    if identity is not None:
        found[REGISTRY_ID] = identity
    if (data_dir / REGISTRY).is_file():
        found[REGISTRY] = _read_registry(data_dir / REGISTRY)
    return found


def check_release(path: Path) -> None:
    """Look into the file of a registry that no process has open. Raises LaterRegistry.

    One that cannot be read is for the start of a service to report.
    """
    if not path.is_file():
        return
    with (
        suppress(sqlite3.DatabaseError),
        closing(
            # nothing is written beside it: there may be no space
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as opened,
    ):
        refuse_later([version for (version,) in opened.execute(_SELECT_REVISIONS)])


def _read_registry(path: Path) -> bytes:
    with tempfile.TemporaryDirectory(prefix="escrowmq-registry-") as folder:
        copy = Path(folder) / REGISTRY
        # The copy is of one moment, and no writer waits for it.
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        return copy.read_bytes()
