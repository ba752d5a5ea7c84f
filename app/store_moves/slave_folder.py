"""The folder that a slave of RocketMQ starts on to follow a service: the files that say which
topics and groups there are, and settings as the log needs them. The log comes from the service.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

from app.store_moves.geometry import broker_settings, geometry_of
from app.store_moves.opened_copy import StoreRefused, read_file
from app.store_moves.ownership import own
from app.store_moves.store_folder import COMMIT_LOG, Listing, list_files
from app.store_moves.work_folder import check_apart
from storage.files import durable
from storage.files.vfs import OsVfs
from storage.formats import topic_configs

_CONFIG = "config"
_MAKING = "making"


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
    folder.mkdir(parents=True, exist_ok=True)
    ownership = own(folder, dry_run=False)  # a slave that runs would write its own over them
    try:
        vfs = OsVfs()
        for made in (_CONFIG, _MAKING):
            (folder / made).mkdir(exist_ok=True)
        for name in found:
            content = durable.read_whole(vfs, store / _CONFIG / name)
            if content is not None:
                durable.replace(vfs, folder / _CONFIG / name, content, scratch=folder / _MAKING)
        (folder / _MAKING).rmdir()
    finally:
        ownership.close()
    return SlaveFolder(found, _settings(folder, listing, store))


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
