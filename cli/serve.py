"""`escrowmq serve`: the service as a process, with its signals and its exit status."""

import ctypes
import gc
import os
import socket
import sys
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI

from app.http.acceptor import Acceptor
from app.life import exit_codes, file_budget
from app.life.life import Life
from app.main import create_app, http_server
from app.observability.logs import configure_logging
from app.observability.open_files import raise_limit
from app.server.connection import Connection, HttpServer
from app.settings import ConfigurationError, Settings
from cli.common import say
from storage.local.options import FlushPolicy

_BACKLOG = 2048
_SHORT_KEY = 16  # characters; a shorter one can be guessed by trying

# glibc's mallopt: buffers of request bodies are mappings of their own, which go back to the system
# at once. In the heap they leave holes: after 200 unfinished gzip bodies under a budget of 256 MiB,
# 461 MiB stayed resident, and so 158 (idle: 113).
_M_TRIM_THRESHOLD, _TRIM_BYTES = -1, 1 << 20
_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 64 << 10

# The garbage collector looks for cycles whenever there are so many objects more than before. At
# Python's 700 that is once in every turn that answers 64 sends, and costs each of them 2 to 5
# microseconds; few requests leave a cycle behind.
_YOUNG_OBJECTS = 50_000

log = structlog.get_logger()


class _Server(uvicorn.Server):
    """uvicorn's server, with our own connections and our own end: long polls are answered before it
    waits for the requests in progress.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app
        self._wiring: Life = app.state.lifecycle
        self._http: HttpServer | None = None
        self._acceptor: Acceptor | None = None
        self._wiring.on_fatal = self._end
        self._wiring.on_loaded = _note_loaded

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        (listener,) = sockets or []
        self._http = http = http_server(self._app)
        self.server_state.connections = http.connections  # type: ignore[assignment]
        self.server_state.tasks = http.tasks
        self._acceptor = Acceptor(listener, http.counted, http.connect, backlog=_BACKLOG)
        self._acceptor.start()

    async def on_tick(self, counter: int) -> bool:
        is_over = await super().on_tick(counter)
        if self._http is not None:
            headers = self.server_state.default_headers  # the date, once a second
            self._http.default_lines = [b"%b: %b\r\n" % header for header in headers]
        return is_over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is not None:
            self._acceptor.stop()
        self._wiring.begin_stop()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves this out then; a second end does nothing
            await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Nothing else here: a signal comes in the middle of anything. A second one ends the wait
        # for requests.
        self.force_exit = self.should_exit
        self.should_exit = True

    def _end(self) -> None:
        self.should_exit = True


def run(settings: Settings, create: Callable[[Settings], FastAPI] = create_app) -> int:
    """Serve until a signal stops it; the exit status. `create` makes what serves."""
    os.umask(0o077)
    readable = settings.log_format == "console" or (settings.dev and not settings.log_format)
    configure_logging(level=settings.log_level, readable=readable)
    soft, limit = raise_limit()
    try:
        settings = file_budget.fit(settings, limit)
    except ConfigurationError as error:
        say(f"escrowmq: {error}")
        return exit_codes.CONFIGURATION
    try:
        listener = _listen(settings.host, settings.port)
    except OSError as error:
        log.critical(
            "address_not_available", host=settings.host, port=settings.port, error=str(error)
        )
        return exit_codes.NO_ADDRESS
    _log_banner(settings, listener)
    log.info(
        "open_files",
        limit=limit,
        raised_from=soft,
        max_connections=settings.http.max_connections,
        max_waiting=settings.http.max_waiting,
        **{
            name.replace(" ", "_"): count
            for name, count in file_budget.plan(settings, limit).needs.items()
        },
    )
    app = create(settings)
    lifecycle: Life = app.state.lifecycle
    config = uvicorn.Config(
        app,
        http=Connection,  # made by the acceptor
        ws="none",
        loop="uvloop",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, settings.http.stop_timeout_ms // 1000),
    )
    # no collection before it: what was imported is no garbage, and looking through it takes 0.2 s
    gc.freeze()
    gc.enable()
    _Server(config, app).run(sockets=[listener])
    return lifecycle.exit_code


def _note_loaded() -> None:
    """From now on requests come in; before, the log is read in large windows."""
    _leave_alone_what_is_loaded()
    _give_memory_back()


def _give_memory_back() -> None:
    """Have the C library return the memory of large buffers; other libraries than glibc do so by
    themselves.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        libc.malloc_trim(0)


def _leave_alone_what_is_loaded() -> None:
    """Exclude the loaded tables from garbage collection.

    They stay in memory. With a million pending transactions the collector would walk them twice a
    second under load, 60 to 100 ms each time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


def _listen(host: str, port: int) -> socket.socket:
    """The listening socket, bound before anything is opened: a wrong address changes nothing on
    disk.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(False)
    return listener


def _log_banner(settings: Settings, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    durability = (
        "synced before every answer"
        if settings.local.flush is FlushPolicy.BEFORE_ACK
        else "buffered, synced by interval"
    )
    log.info(
        "starting",
        url=url,
        docs=f"{url}/docs",
        console=f"{url}/ui/",
        data_dir=str(settings.data_dir.resolve()),
        durability=durability,
        segment_bytes=settings.local.segment_bytes,
        max_body_bytes=settings.http.max_body_bytes,
        keys=len(settings.keys),
    )
    short = sum([len(key) < _SHORT_KEY for key, _ in settings.keys])
    if short:
        log.warning("api_keys_are_short", keys=short, recommended_length=_SHORT_KEY)
    if settings.testing.enabled:
        log.warning("controls_for_tests_are_on", clock_ahead_ms=settings.testing.clock_ahead_ms)
    log.debug("settings", **settings.masked())
    if settings.dev and sys.stderr.isatty():
        sys.stderr.write(_FIRST_STEPS.format(url=url))


_FIRST_STEPS = """
  A transaction in three lines:
    curl {url}/v1/transactions --json '{{"transaction_id":"first","producer_group":"shop",
      "messages":[{{"topic":"orders","message":{{"json":{{"order":1}},"queue_id":0}}}}]}}'
    curl -X POST {url}/v1/transactions/first/commit
    curl '{url}/v1/topics/orders/queues/0/messages'

"""
