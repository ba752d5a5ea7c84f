"""The process that checks documents against schemas, started by `schema_process.py`; its argument
is the limit of CPU time.
"""

import os
import resource
import signal
import sys
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import msgspec

from app.problems import FieldError
from app.registry.payload_schema import Compiled
from app.registry.schema_process import ANSWERED, ASKED, MEMORY_BYTES

_NICENESS = 10

_compiled = lru_cache(maxsize=64)(Compiled)


def serve(questions: BinaryIO, answers: BinaryIO, *, cpu_seconds: float) -> None:
    """Answer until the service closes the pipe."""
    while head := questions.read(ASKED.size):
        schema_bytes, document_bytes = ASKED.unpack(head)
        schema, document = questions.read(schema_bytes), questions.read(document_bytes)
        # SIGPROF ends the process, wherever it is.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        errors = msgspec.json.encode(_errors(schema, document))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(ANSWERED.pack(len(errors)) + errors)
        answers.flush()


def _errors(schema: bytes, document: bytes) -> list[FieldError]:
    try:
        return _compiled(schema, "").errors(document)
    except MemoryError:
        os.abort()  # as where the library runs out of memory


def _own_bytes() -> int:
    """The address space that is in use already: libraries reserve some for each core."""
    pages, _, _ = Path("/proc/self/statm").read_text("ascii").partition(" ")
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    os.nice(_NICENESS)
    limit_bytes = _own_bytes() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(sys.stdin.buffer, sys.stdout.buffer, cpu_seconds=float(sys.argv[1]))
