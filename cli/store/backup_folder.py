"""The folder of backups that a path or URI names."""

from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from app.backup.folder import Folder, LocalFolder
from audit.files.uris import is_uri, without_secrets
from cli.common import needs_pyarrow


def folder_of(where: str) -> Folder:
    """Raises OSError, ValueError; typer.Exit where a URI is given and pyarrow is not installed."""
    if not is_uri(where):
        return LocalFolder(Path(where).absolute())
    needs_pyarrow("A URI is read and written by pyarrow")
    return ArrowFolder(where)


class ArrowFolder:
    """A folder by its URI, on any file system that pyarrow knows. Nothing keeps a second run from
    writing to it.
    """

    def __init__(self, uri: str) -> None:
        from audit.files.filesystems import files_on, filesystem_of

        self._filesystem, root = filesystem_of(uri)
        self._root = root.rstrip("/")
        self._files = files_on(self._filesystem)
        self._made: set[str] = set()
        self.name = without_secrets(uri)

    def own(self) -> AbstractContextManager[object]:
        return nullcontext()

    def sizes(self, path: str) -> dict[str, int]:
        return self._files.sizes(f"{self._root}/{path}")

    def read(self, path: str) -> bytes | None:
        return self._files.read(f"{self._root}/{path}")

    def write(self, path: str, data: bytes) -> None:
        from audit.files import whole_files

        whole = f"{self._root}/{path}"
        folder = whole.rpartition("/")[0]
        if folder not in self._made:
            whole_files.make_folder(self._filesystem, folder)
            self._made.add(folder)
        whole_files.write(self._filesystem, whole, data)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(f"{self._root}/{path}")
