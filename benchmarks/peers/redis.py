"""Redis Streams: one stream, an append-only file."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks import messages
from benchmarks.generator import Driver, NotOffered, load_program
from benchmarks.peers.peer import Running, Setting, Work, free_port, server, wait_for_port
from benchmarks.rows import FILLED

name = "Redis Streams"
settings = (
    Setting(name="always", text="appendfsync always", durability="synced"),
    Setting(name="everysec", text="appendfsync everysec", durability="buffered"),
)


def version() -> str:
    if not shutil.which("redis-server"):
        raise NotOffered("needs redis-server")
    load_program()
    output = subprocess.run(
        ["redis-server", "--version"], capture_output=True, text=True, check=True
    ).stdout
    return output.partition("v=")[2].split()[0]


@contextmanager
def started(setting: Setting, directory: Path) -> Iterator[Running]:
    port, log = free_port(), directory / "redis.log"
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(directory),
        "save": "",
        "appendonly": "yes",
        "appendfsync": setting.name,
        "auto-aof-rewrite-percentage": "0",
    }
    arguments = [word for option, value in options.items() for word in (f"--{option}", value)]
    with server(["redis-server", *arguments], log) as pid:
        wait_for_port(port, pid, log)
        with closing(Driver([str(load_program())])) as load:
            message = {
                "key": messages.KEY,
                "tag": messages.TAG,
                "body": messages.PAYLOAD,
                "work": "redis-add",
                "topic": "load",
            }
            filled = {**message, "topic": "filled", "size": 100, "operations": FILLED // 100}
            load.run(lambda: [pid], port=port, connections=1, **filled)
            works = (
                Work(row="single", command={**message, "size": 1}, counts=(64, 256), text="XADD"),
                Work(
                    row="batch",
                    command={**message, "size": 100},
                    counts=(8,),
                    text="100 XADD in one write",
                ),
                Work(
                    row="pull",
                    command={"work": "redis-read", "topic": "filled", "size": 100},
                    counts=(8,),
                    text="XREAD COUNT 100",
                ),
            )
            yield Running(roots=[pid], load=load, command={"port": port}, works=works)
