"""The process that decodes large bodies, started by `bodies/process.py`."""

import os
import pickle
import sys
from traceback import format_exc
from typing import Any, BinaryIO

from app.bodies.process import Failure
from app.messages import payload
from app.messages.schemas import PayloadInput
from app.problems import Refusal

_NICENESS = 10


class _Pickler(pickle.Pickler):
    def reducer_override(self, given: Any) -> Any:
        """Send what was made of a message in its place."""
        if isinstance(given, PayloadInput) and not isinstance(given, payload.MADE):
            return payload.make(given).__reduce__()
        return NotImplemented


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the service closes the pipe."""
    while True:
        try:
            function, arguments = pickle.load(questions)  # noqa: S301
        except EOFError:
            return
        _Pickler(answers, pickle.HIGHEST_PROTOCOL).dump(_outcome(function, arguments))
        answers.flush()


def _outcome(function: Any, arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Refusal as refusal:
        return refusal
    except Exception:  # noqa: BLE001 - the service raises it
        return Failure(format_exc())


if __name__ == "__main__":
    os.nice(_NICENESS)
    serve(sys.stdin.buffer, sys.stdout.buffer)
