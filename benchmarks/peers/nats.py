"""NATS JetStream: a stream in files, one replica."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks import messages
from benchmarks.generator import BUILT, Driver, NotOffered, load_program
from benchmarks.peers.peer import Running, Setting, Work, free_port, server, wait_for_port

name = "NATS JetStream"
settings = (
    Setting(name="always", text="sync_interval always", durability="synced"),
    Setting(name="2m", text="sync_interval 2m (default)", durability="buffered"),
)
_MODULE = "github.com/nats-io/nats-server/v2@v2.12.0"


def version() -> str:
    output = subprocess.run(
        [_program(), "--version"], capture_output=True, text=True, check=True
    ).stdout
    load_program()
    return output.split()[-1].lstrip("v")


def _program() -> str:
    """The server that is installed, or one that Go builds. Raises NotOffered."""
    if installed := shutil.which("nats-server"):
        return installed
    folder = BUILT / "peers" / "nats"
    program = folder / "nats-server"
    if not program.exists():
        if not shutil.which("go"):
            raise NotOffered("needs nats-server, or go to build it")
        command = ["env", f"GOBIN={folder}", "go", "install", _MODULE]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            raise NotOffered(f"needs nats-server; go install {_MODULE} failed")
    return str(program)


@contextmanager
def started(setting: Setting, directory: Path) -> Iterator[Running]:
    port, log, file = free_port(), directory / "nats.log", directory / "nats.conf"
    file.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}/store", sync_interval: '
        f"{setting.name} }}\n"
    )
    with server([_program(), "-c", file], log) as pid:
        wait_for_port(port, pid, log)
        _create_stream(port)
        with closing(Driver([str(load_program())])) as load:
            message = {
                "body": messages.KEY + messages.TAG + messages.PAYLOAD,
                "work": "nats-publish",
                "topic": "load",
            }
            works = (
                Work(
                    row="single",
                    command={**message, "size": 1},
                    counts=(64, 256),
                    text="publish, acknowledged",
                ),
                Work(
                    row="batch",
                    command={**message, "size": 100},
                    counts=(8,),
                    text="100 publishes in one write",
                ),
            )
            yield Running(roots=[pid], load=load, command={"port": port}, works=works)


def _create_stream(port: int) -> None:
    config = json.dumps(
        {"name": "load", "subjects": ["load.*"], "storage": "file", "num_replicas": 1}
    ).encode()
    with closing(socket.create_connection(("127.0.0.1", port), 10)) as connection:
        connection.sendall(b'CONNECT {"verbose":false}\r\nSUB _INBOX.create 1\r\n')
        connection.sendall(
            b"PUB $JS.API.STREAM.CREATE.load _INBOX.create %d\r\n%s\r\n" % (len(config), config)
        )
        answer = b""
        while b"MSG " not in answer or not answer.endswith(b"}\r\n"):
            answer += connection.recv(1 << 16)
        if b'"error"' in answer:
            raise RuntimeError(answer.decode())
