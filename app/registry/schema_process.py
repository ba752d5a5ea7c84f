"""Check documents against schemas in a process of its own, with a limit of CPU time and memory for
each check.

The process is started with the first check that needs it, answers one at a time, and ends when the
service does. A check over the limit ends the process; the next one starts another.
"""

import asyncio
import signal
import struct
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import msgspec
import structlog

from app.problems import FieldError
from storage.errors import Backpressure

CPU_SECONDS = 2
MEMORY_BYTES = 2 << 30
ASKED = struct.Struct(">II")  # bytes of the schema, bytes of the document; both follow
ANSWERED = struct.Struct(">I")  # bytes of the errors as JSON, which follow

_MAX_WAITING = 16
_PIECE_BYTES = 256 << 10  # of a document
_OVER_A_LIMIT = (-signal.SIGPROF, -signal.SIGABRT)  # of CPU time; of memory
_errors_decoder = msgspec.json.Decoder(list[FieldError])

log = structlog.get_logger()


class SchemaProcess:
    """Process that checks documents against slow schemas. Event loop only."""

    def __init__(self, *, cpu_seconds: float = CPU_SECONDS) -> None:
        """`cpu_seconds`: the limit of one check."""
        self._cpu_seconds = cpu_seconds
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._process: Process | None = None

    async def errors(self, schema: bytes, document: bytes) -> list[FieldError]:
        """The errors of a document, none where it is right; one of code limit_reached where the
        check was over a limit.

        Raises Backpressure where many checks wait or the process ended for another reason.
        """
        if self._waiting >= _MAX_WAITING:
            raise Backpressure(f"{self._waiting} documents wait to be checked against schemas")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._ask(schema, document)
        finally:
            self._waiting -= 1

    async def aclose(self) -> None:
        """End the process."""
        if self._process is not None:
            await self._end(self._process)

    async def _ask(self, schema: bytes, document: bytes) -> list[FieldError]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await _started(self._cpu_seconds)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(ASKED.pack(len(schema), len(document)) + schema)
            for start in range(0, len(document), _PIECE_BYTES):  # each is copied on the event loop
                process.stdin.write(document[start : start + _PIECE_BYTES])
                await process.stdin.drain()
            (size,) = ANSWERED.unpack(await process.stdout.readexactly(ANSWERED.size))
            return _errors_decoder.decode(await process.stdout.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await self._end(process)
            log.warning("schema_check_ended", status=status)
            if status in _OVER_A_LIMIT:
                limits = f"{self._cpu_seconds} s of CPU time or {MEMORY_BYTES >> 30} GiB"
                detail = (
                    f"to check the document against the topic's schema takes more than {limits}"
                )
                return [FieldError("", "limit_reached", detail)]
            raise Backpressure(
                "the process that checks documents against schemas has ended"
            ) from None
        # the client has left: an answer that is still to come is not the next one's
        except BaseException:
            await asyncio.shield(self._end(process))
            raise

    async def _end(self, process: Process) -> int:
        self._process = None
        if (
            process.returncode is None
            and process.stdout is not None
            and not process.stdout.at_eof()
        ):
            with suppress(ProcessLookupError):
                process.kill()
        return await process.wait()


async def _started(cpu_seconds: float) -> Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "app.registry.schema_worker", str(cpu_seconds),
        stdin=PIPE,
        stdout=PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the service
    )  # fmt: skip
    log.info("schema_process_started", process_id=process.pid)
    return process
