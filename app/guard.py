"""uvicorn's HTTP protocol with the deadlines that it lacks: a silent or dribbling client must not hold a connection."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.settings import HttpOptions


def guarded(options: HttpOptions) -> type[asyncio.Protocol]:
    """The protocol class for these limits."""

    class GuardedProtocol(HttpToolsProtocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > options.max_connections:
                transport.close()
                return
            self._expect_within(options.head_timeout_ms)

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect_nothing()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._expect_within(options.head_timeout_ms)

        def on_headers_complete(self) -> None:
            self._expect_within(options.body_timeout_ms)
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._expect_nothing()
            super().on_message_complete()

        def _expect_within(self, timeout_ms: int) -> None:
            self._expect_nothing()
            self._deadline = self.loop.call_later(timeout_ms / 1000, self._close_late)

        def _expect_nothing(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _close_late(self) -> None:
            if self.transport is not None and not self.transport.is_closing():
                self.transport.close()

    return GuardedProtocol
