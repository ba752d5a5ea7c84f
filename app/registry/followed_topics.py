"""The topics of the service that a replica follows, as its registry has them: a copy of its file,
or the database that both use.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog
from sqlalchemy import URL, Connection, create_engine, make_url, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from app.registry.database import Database, rows
from app.registry.tables import topics as table
from app.registry.topics import KnownTopics, Topic, TopicSettings
from storage.clock import Clock
from storage.errors import InvalidRequest, RegistryUnavailable
from storage.store import MessageStore

_SERVER_MS = 5_000  # so often a database is asked

log = structlog.get_logger()


class FollowedTopics(KnownTopics):
    """The topics that were read last; none before there is a registry. Event loop only."""

    def __init__(self, url: str | URL, clock: Clock) -> None:
        """`url`: of the registry."""
        super().__init__()
        self._url = make_url(url)
        self._clock = clock
        self._store: MessageStore | None = None  # that knows their queues
        self._last: object = None  # the version of the registry that was read
        self._failure = ""

    @property
    def are_known(self) -> bool:
        """Have they been read?"""
        return self._last is not None

    async def refresh(self, store: MessageStore) -> None:
        """Read them again where they may have changed, and make their queues known to the store.

        Where the registry cannot be read they stay as they are.
        """
        try:
            found = await asyncio.to_thread(self._version)
            if found == self._last and store is self._store:
                return
            topics = await self._read()
        except FileNotFoundError:
            return  # the service has not sent it yet
        except (
            OSError,
            RegistryUnavailable,
            SQLAlchemyError,
            msgspec.ValidationError,
        ) as error:
            self._note_failure(str(error).partition("\n")[0])
            return
        self._last, self._store, self._failure = found, store, ""
        for topic in topics:
            with suppress(InvalidRequest):  # the log has more queues than this copy knows of
                await store.create_topic(topic.name, queue_count=topic.settings.queues)
        self._topics = {topic.name: topic for topic in topics}

    @property
    def _file(self) -> str | None:
        """The file of the registry; None if it is a database of several machines."""
        return self._url.database if self._url.get_backend_name() == "sqlite" else None

    def _version(self) -> object:
        """A value that changes whenever topics may have changed. Raises OSError."""
        if self._file is None:
            return self._clock.monotonic_ms() // _SERVER_MS
        found = os.stat(self._file)
        return found.st_ino, found.st_size, found.st_mtime_ns

    async def _read(self) -> list[Topic]:
        if self._file is not None:
            return await asyncio.to_thread(self._read_copy, self._file)
        database = Database(self._url)
        try:
            return await database.read(_topics_in)
        finally:
            await database.aclose()

    def _read_copy(self, file: str) -> list[Topic]:
        """A copied file is replaced, and never changes: it is read without locks, and without files
        beside it.
        """
        query = {"mode": "ro", "immutable": "1", "uri": "true"}
        engine = create_engine(
            self._url.set(database=Path(file).absolute().as_uri(), query=query), poolclass=NullPool
        )
        with engine.connect() as connection:
            return _topics_in(connection)

    def _note_failure(self, reason: str) -> None:
        """Log each reason once: it may last."""
        if reason != self._failure:
            self._failure = reason
            log.warning("followed_topics_not_read", reason=reason)


def _topics_in(connection: Connection) -> list[Topic]:
    query = select(table).where(table.c.is_being_deleted.is_(False))
    return [_topic_of(values) for values in rows(connection, query)]


def _topic_of(values: dict[str, Any]) -> Topic:
    """The topic of a row, without its schema, which only senders need. Raises ValidationError."""
    created_at_ms, revision = values.pop("created_at_ms"), values.pop("revision")
    del values["is_being_deleted"]
    settings = msgspec.convert(values, TopicSettings)
    return Topic(settings, None, created_at_ms=created_at_ms, revision=revision)
