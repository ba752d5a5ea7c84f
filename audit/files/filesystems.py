"""File systems of pyarrow, by path or URI."""

import os
from collections.abc import Iterator

from pyarrow import fs

from audit.files import hdfs
from audit.files.local_files import FileBelow, Files, LocalFiles, OpenFile
from audit.files.uris import is_uri


def filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system and the path in it. Without a scheme it is a path on this machine.

    Raises OSError, ValueError, NoHdfs.
    """
    if uri.startswith("hdfs:"):
        return hdfs.filesystem_of(uri)
    if is_uri(uri):
        filesystem, path = fs.FileSystem.from_uri(uri)
        return filesystem, path
    return fs.LocalFileSystem(), os.path.abspath(uri)


def files_on(filesystem: fs.FileSystem) -> Files:
    """The files of one of them. Those of this machine come from the operating system, which knows
    their holes.
    """
    return LocalFiles() if isinstance(filesystem, fs.LocalFileSystem) else _ArrowFiles(filesystem)


class _ArrowFiles:
    is_remote = True

    def __init__(self, filesystem: fs.FileSystem) -> None:
        self._filesystem = filesystem

    def is_folder(self, path: str) -> bool:
        return bool(self._filesystem.get_file_info(path).type is fs.FileType.Directory)

    def sizes(self, folder: str) -> dict[str, int]:
        found = self._filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return {info.base_name: info.size for info in found if info.type is fs.FileType.File}

    def files_below(self, folder: str) -> Iterator[FileBelow]:
        selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
        for info in self._filesystem.get_file_info(selector):
            if info.type is fs.FileType.File:
                below = info.path.removeprefix(folder).lstrip("/")
                yield FileBelow(below, info.size, info.size)

    def read(self, path: str) -> bytes | None:
        if self._filesystem.get_file_info(path).type is not fs.FileType.File:
            return None
        with self._filesystem.open_input_file(path) as file:
            data: bytes = file.read()
        return data

    def open(self, path: str) -> OpenFile:
        file: OpenFile = self._filesystem.open_input_file(path)
        return file

    def data_ranges(self, path: str, size: int) -> list[tuple[int, int]]:
        return [(0, size)]  # holes are not reported
