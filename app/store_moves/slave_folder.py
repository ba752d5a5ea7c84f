"""The folder that a slave of RocketMQ starts on to follow a service: the files that say which
topics and groups there are, and settings as the log needs them. The log comes from the service.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from app.disk.data_folder import foreign_in
from app.registry.registry_files import REGISTRY_ID
from app.store_moves.geometry import broker_settings, geometry_of
from app.store_moves.opened_copy import StoreRefused, read_file
from app.store_moves.ownership import own
from app.store_moves.store_folder import COMMIT_LOG, Listing, list_files
from app.store_moves.work_folder import TargetRefused, check_apart
from storage.files import durable
from storage.files.vfs import OsVfs
from storage.formats import config_json, topic_configs

_CONFIG = "config"
_MAKING = ".making-"


class SlaveFolder(NamedTuple):
    """Names of the files that were written, and lines of the slave's `broker.conf`."""

    files: list[str]
    settings: dict[str, str]


def write_slave_folder(data_dir: Path, folder: Path) -> SlaveFolder:
    """Write the folder; in that of a slave which is stopped, newer files over the ones it has.

    `data_dir`: of a service, which may run: it writes these files every ten seconds, where they
    change.

    Raises StoreRefused, TargetRefused, DirectoryInUse, TooManyFiles, OSError.
    """
    check_apart(data_dir, folder)
    store = data_dir / "store"
    if not (store / COMMIT_LOG).is_dir():
        raise StoreRefused([f"{data_dir} is no data directory: it has no store/{COMMIT_LOG}/"])
    listing = list_files(store)
    found = _config_files(listing)
    if topic_configs.FILE not in found:
        file = store / _CONFIG / topic_configs.FILE
        raise StoreRefused([f"{file} is not there yet: a service writes it while it runs"])
    vfs = OsVfs()
    contents = {
        name: content
        for name in found
        if (content := durable.read_whole(vfs, store / _CONFIG / name)) is not None
    }
    _refuse_other(folder, contents)
    folder.mkdir(parents=True, exist_ok=True)
    ownership = own(folder, dry_run=False)  # a slave that runs would write its own over them
    try:
        (folder / _CONFIG).mkdir(exist_ok=True)
        with TemporaryDirectory(prefix=_MAKING, dir=folder) as making:
            for name, content in contents.items():
                durable.replace(vfs, folder / _CONFIG / name, content, scratch=Path(making))
    finally:
        ownership.close()
    return SlaveFolder(list(contents), _settings(folder, listing, store))


def _refuse_other(folder: Path, written: dict[str, bytes]) -> None:
    """Raise TargetRefused where the folder cannot be a slave's: its files would be overwritten.

    That of a slave which has run has a log; before, it has what this command has written.
    """
    if (folder / Path(REGISTRY_ID).name).exists():
        raise TargetRefused(f"{folder} is the store of a service: choose another folder")
    if (folder / COMMIT_LOG).is_dir():
        return
    if foreign := foreign_in(folder):
        raise TargetRefused(
            f"{folder} has no {COMMIT_LOG}, and {foreign} is not part of a store: the folder "
            "belongs to another program. Choose another one"
        )
    for name, content in written.items():
        file = folder / _CONFIG / name
        if file.exists() and not _is_alike(file.read_bytes(), content):
            raise TargetRefused(
                f"{file} is not a file of RocketMQ: the folder belongs to another program. Choose "
                "another one"
            )


def _is_alike(found: bytes, written: bytes) -> bool:
    """Has an object of JSON that was found a name in common with the one that is written? Nothing
    is lost with one that is empty.
    """
    try:
        names = _members(found) if found.strip() else set()
        return not names or not names.isdisjoint(_members(written))
    except (msgspec.DecodeError, RecursionError):
        return False


def _members(raw: bytes) -> set[str]:
    return set(msgspec.json.decode(config_json.as_json(raw), type=dict[str, Any]))


def _config_files(listing: Listing) -> list[str]:
    begin = f"{_CONFIG}/"
    found = [path.removeprefix(begin) for path in listing.within(_CONFIG)]
    return [name for name in found if name.endswith(".json") and "/" not in name]


def _settings(folder: Path, listing: Listing, store: Path) -> dict[str, str]:
    geometry, _ = geometry_of(listing, partial(read_file, store))
    return {
        "brokerId": "1",
        "brokerRole": "SLAVE",
        "storePathRootDir": str(folder),
        "storePathCommitLog": str(folder / COMMIT_LOG),
        "slaveReadEnable": "true",
        **{name: str(value) for name, value in broker_settings(geometry).items()},
    }
