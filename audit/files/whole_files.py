"""Files that are there whole or not at all, on any file system that pyarrow knows.

What is written is called `PATH.part` first, and PATH when all of it is there. On a disk it outlives
a power cut:

1. the bytes are synced before the file gets its name: else the name could outlive them;
2. the folder is synced behind the new name, before success is reported: else what is written later
   (a manifest that names the file) could outlive the name.

An object store has no such moment between: an upload is there when it is closed. HDFS keeps what is
closed on several machines.
"""

from collections.abc import Iterable
from pathlib import Path

from pyarrow import fs

from audit.files.local_files import PART, free_part_of, sync


def make_folder(filesystem: fs.FileSystem, path: str) -> None:
    """Create the folder and its parents. On a local disk they survive a power cut."""
    missing = []
    if isinstance(filesystem, fs.LocalFileSystem):
        missing = [one for one in (Path(path), *Path(path).parents) if not one.exists()]
    filesystem.create_dir(path, recursive=True)
    for one in missing:
        sync(str(one.parent))


def write(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    write_part(filesystem, path, [data])
    name(filesystem, path)


def write_beside_others(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a file of another machine as `write` does, beside a `PATH.part` of another program."""
    part = free_part_of(path)
    try:
        with filesystem.open_output_stream(part) as stream:
            stream.write(data)
        _rename(filesystem, part, path)
    except BaseException:
        if filesystem.get_file_info(part).type is fs.FileType.File:
            filesystem.delete_file(part)
        raise


def part_of(path: str) -> str:
    """Name of the file until it is complete."""
    return f"{path}{PART}"


def is_part(name: str) -> bool:
    return name.endswith(PART)


def write_part(filesystem: fs.FileSystem, path: str, blocks: Iterable[bytes]) -> str:
    """The path of the part, which is on disk."""
    part = part_of(path)
    with filesystem.open_output_stream(part) as stream:
        for block in blocks:
            stream.write(block)
    sync_part(filesystem, path)
    return part


def sync_part(filesystem: fs.FileSystem, path: str) -> None:
    """On a disk; and the next read takes the bytes from there and not from memory."""
    if isinstance(filesystem, fs.LocalFileSystem):
        sync(part_of(path), forget=True)


def name(filesystem: fs.FileSystem, path: str) -> None:
    """The part, which is written, gets its name, in place of what has it."""
    _rename(filesystem, part_of(path), path)


def _rename(filesystem: fs.FileSystem, part: str, path: str) -> None:
    if (
        not isinstance(filesystem, fs.LocalFileSystem)
        and filesystem.get_file_info(path).type is fs.FileType.File
    ):
        filesystem.delete_file(path)  # HDFS gives no name twice
    filesystem.move(part, path)
    if isinstance(filesystem, fs.LocalFileSystem):
        sync(str(Path(path).parent))
