"""Log lines of the service.

Events are words with fields (`event`, `transaction_id`, `request_id`, ...); payloads and secrets
are never among them.
"""

import logging
import os
import re
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog

_SECRET = re.compile(r"whsec_[A-Za-z0-9+/_=-]+")


class _StandardError:
    """Standard error for a log.

    A line that cannot be written (to a file, on a full disk) is lost: logging must not make an
    operation fail. A signing secret is removed from every line.
    """

    def write(self, text: str) -> None:
        left = _SECRET.sub("whsec_***", text).encode("utf-8", "backslashreplace")
        with suppress(OSError):
            while left:
                left = left[os.write(sys.stderr.fileno(), left) :]

    def flush(self) -> None:
        """Nothing is kept back."""


def configure_logging(*, level: str, readable: bool, is_final: bool = True) -> None:
    """JSON lines, or readable ones for a person at a terminal; on standard error, libraries' lines
    too.

    `is_final`: loggers keep this configuration, which makes their lines cheaper.
    """
    stream = cast("TextIO", _StandardError())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks without local variables: payloads and secrets are in them.
    if readable:
        plain = structlog.dev.plain_traceback
        end: list[structlog.typing.Processor] = [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
        ]
    else:
        tracebacks = structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        )
        end = [tracebacks, structlog.processors.JSONRenderer()]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *end],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=is_final,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *end],
        )
    )
    logging.basicConfig(level=max(threshold, logging.WARNING), handlers=[handler], force=True)
    # It warns of every request that is no HTTP: their senders could fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
