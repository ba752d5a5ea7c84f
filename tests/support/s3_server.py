"""An S3 server in a process of its own (moto's), which notes what it was asked."""

import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from wsgiref.types import StartResponse, WSGIEnvironment

from pyarrow import fs

from tests.support.http import WAIT_SECONDS

ACCESS_KEY, SECRET = "the-access-key", "the-secret"
BUCKET = "bucket"


class Asked(NamedTuple):
    """A request. `bytes` of a GET with a range are those that it asks for."""

    method: str
    path: str
    bytes: int


class S3Server:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._notes = folder / "requests"
        self._notes.touch()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self._port = taken.getsockname()[1]
            taken.listen()
            command = [
                sys.executable,
                "-m",
                "tests.support.s3_server",
                str(taken.fileno()),
                str(self._notes),
            ]
            self._process = subprocess.Popen(
                command, pass_fds=[taken.fileno()], stderr=subprocess.DEVNULL
            )
        self.filesystem = fs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET,
            endpoint_override=self.address,
            scheme="http",
            allow_bucket_creation=True,
        )
        self.filesystem.create_dir(BUCKET)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(WAIT_SECONDS)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """All that a process needs that is given URIs without anything of this server in them."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_ENDPOINT_URL": f"http://{self.address}",
        }

    def uri(self, path: str) -> str:
        """One that says everything, for a process whose environment says nothing."""
        return (
            f"s3://{ACCESS_KEY}:{SECRET}@{BUCKET}/{path}?endpoint_override={self.address}&"
            "scheme=http&region=eu-central-1"
        )

    def put(self, folder: Path, path: str) -> None:
        """The files below the folder."""
        for file in folder.rglob("*"):
            if file.is_file():
                with self.filesystem.open_output_stream(
                    f"{BUCKET}/{path}/{file.relative_to(folder)}"
                ) as stream:
                    stream.write(file.read_bytes())

    def names(self, path: str) -> list[str]:
        """Of what lies there, at any depth."""
        found = self.filesystem.get_file_info(fs.FileSelector(f"{BUCKET}/{path}", recursive=True))
        return sorted(
            info.path.removeprefix(f"{BUCKET}/{path}/")
            for info in found
            if info.type is fs.FileType.File
        )

    def read(self, path: str) -> bytes:
        with self.filesystem.open_input_file(f"{BUCKET}/{path}") as file:
            data: bytes = file.read()
        return data

    def asked(self) -> list[Asked]:
        """Since it was last asked for."""
        lines = self._notes.read_text("utf-8").splitlines()
        self._notes.write_text("", "utf-8")
        return [
            Asked(method, path, int(length))
            for method, path, length in (line.split() for line in lines)
        ]


def _serve(handle: int, notes: Path) -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    answer = DomainDispatcherApplication(create_backend_app)

    def noted(environ: WSGIEnvironment, start: StartResponse) -> object:
        first, _, last = environ.get("HTTP_RANGE", "").removeprefix("bytes=").partition("-")
        length = int(last) - int(first) + 1 if first and last else 0
        with notes.open("a", encoding="utf-8") as file:
            file.write(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {length}\n")
        return answer(environ, start)

    make_server("127.0.0.1", 0, noted, threaded=True, fd=handle).serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]))
