"""Sending by stream: lines of JSON in, and for each of them, in their order, one line that says
what became of it. The lines in may be values of MessagePack as well.

Lines are taken as they come and appended in their order; answers wait in a window. When that is
full nothing is read from the socket, and the client has to wait: it must read answers while it
sends. A line that is wrong is answered with its problem, and the stream goes on.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from app.bodies.thread import THREAD_BYTES
from app.encoding import codec, message_pack
from app.http.exchange import JSON_LINES, Call
from app.idempotency.keys import KeyedRequest
from app.messages import plain_rows
from app.messages.build import build, request_limit
from app.messages.forms import OF_STREAM, Form, form_of
from app.messages.payload import LINE_DEPTH
from app.messages.plain_rows import PlainEntry
from app.messages.schemas import BatchResult, MessageInput
from app.messages.send import (
    append_all,
    begin_keyed,
    can_have,
    is_late,
    receipt_of,
    status_of,
    strongest_of,
)
from app.operations import IDEMPOTENCY_KEY, Lines, operation
from app.problems import Refusal, document, invalid_field, is_malformed, too_large, under
from app.registry.payload_schema import ChecksPending, until_checked
from app.registry.topics import Topic
from app.services import Services
from scheduler import scheduled_message
from storage.errors import MessagingError, RejectedError
from storage.idempotency import fingerprint_of
from storage.message import Appended, Durability, Message, Row

WINDOW_LINES = 1_000  # taken and not answered yet
_WINDOW_BYTES = 8 << 20  # of lines in the window, or one line that is larger
_SPLIT_BYTES = 64 << 10  # cut into lines in one turn of the loop
_PIECE_LINES = 200  # appended together
_PIECE_BYTES = 1 << 20

Answer = BatchResult | Awaitable[BatchResult]


@operation(
    "POST",
    "/v1/topics/{topic}/messages/stream",
    "sendMessageStream",
    tag="messages",
    scopes=["send"],
    takes_lines=True,
    body_types=[message_pack.MEDIA_TYPE],
    answers={200: Lines},
    answer_headers=["Store-Pressure"],
    headers=[IDEMPOTENCY_KEY],
    problems=("topic_not_found", "reserved_topic"),
)
async def send_stream(
    services: Services, call: Call, topic_name: str, chunks: AsyncIterator[bytes]
) -> AsyncGenerator[bytes, None]:
    """Send messages for as long as you like, a line of JSON each. A line in is as an entry of a
    batch, `{"id":"1","message":{...}}`; a line out is as a result of a batch, with a receipt or a
    problem, one for each line in and in their order. The status 200 says nothing about the lines.
    Read while you write: at most 1,000 lines are taken before their answers are. With an
    Idempotency-Key, that key and the id of a line make the line repeatable.
    """
    # The answers end with the body, or when the service stops: a line without an answer was not
    # taken.
    media_type = call.headers.get("content-type", JSON_LINES).partition(";")[0].strip().lower()
    form = form_of(media_type, OF_STREAM)
    stream = _Stream(services, call, form, await services.topics.get_or_create(topic_name))
    taking = asyncio.create_task(stream.take(chunks))
    stopping = asyncio.create_task(services.stopping.wait())
    stopping.add_done_callback(lambda _: taking.cancel())
    has_answered = False
    try:
        while (piece := await stream.pieces.get()) is not None:
            yield await piece.answers
            has_answered = True
            stream.release(piece)
        await asyncio.wait({taking})
        if not taking.cancelled():
            taking.result()
    except Refusal as refusal:
        if not has_answered:
            raise
        # The body cannot be read on: this answers the line that was to come.
        yield codec.encode(_refused(UNSET, refusal)) + b"\n"
    finally:
        taking.cancel()
        stopping.cancel()


# --------------------------------------------------------------------------------------------------
# stream


class _Line(NamedTuple):
    id: str | UnsetType
    given: MessageInput
    fingerprint: str
    byte_count: int


class _Built(NamedTuple):
    line: _Line
    message: Message


class _Piece(NamedTuple):
    """Lines that were taken together. `answers`: as lines, in their order; it never fails."""

    line_count: int
    byte_count: int
    answers: "asyncio.Task[bytes]"


class _Plain(NamedTuple):
    """Lines that were all plain; the lists have one item a line."""

    entry_ids: list[str | UnsetType]
    message_ids: list[str]
    rows: list[Row]
    durability: Durability | None


class _Stream:
    """One request. `take` fills `pieces`, a None ends them."""

    def __init__(self, services: Services, call: Call, form: Form, topic: Topic) -> None:
        self.pieces: asyncio.Queue[_Piece | None] = asyncio.Queue()
        self._services = services
        self._store = services.store
        self._call = call
        self._form = form
        self._topic = topic
        self._key = call.idempotency_key
        self._traceparent = call.traceparent
        self._max_line_bytes = min(services.max_line_bytes, request_limit(topic).request_bytes)
        self._open_lines = self._open_bytes = 0
        self._has_room = asyncio.Event()

    async def take(self, chunks: AsyncIterator[bytes]) -> None:
        """Read lines for as long as some come.

        What was taken when this is cancelled is answered still.
        """
        splitter = self._form.splitter(self._max_line_bytes)
        try:
            async for chunk in self._services.entry_pace.keep(chunks, splitter):
                for start in range(0, len(chunk), _SPLIT_BYTES):
                    await self._take_lines(splitter.feed(chunk[start : start + _SPLIT_BYTES]))
                    while splitter.has_more:
                        await self._take_lines(splitter.feed(b""))
                    splitter.check()
                    coming_bytes = max(0, len(chunk) - start - _SPLIT_BYTES)
                    self._call.share.keep(self._open_bytes + splitter.held_bytes + coming_bytes)
                    # many lines are blank, it may be, and have waited for nothing
                    await asyncio.sleep(0)
            await self._take_lines(splitter.end())
        finally:
            self.pieces.put_nowait(None)

    def release(self, piece: _Piece) -> None:
        """Release the memory of a piece whose answers are on their way."""
        self._open_lines -= piece.line_count
        self._open_bytes -= piece.byte_count
        self._call.share.release(piece.byte_count)
        self._has_room.set()

    async def _take_lines(self, lines: Sequence[bytes | None]) -> None:
        piece: list[bytes | None] = []
        size = 0
        for line in lines:
            length = len(line or b"")
            if piece and (len(piece) == _PIECE_LINES or size + length > _PIECE_BYTES):
                await self._begin(piece, size)
                # where all of its lines were wrong it has waited for nothing
                await asyncio.sleep(0)
                piece, size = [], 0
            piece.append(line)
            size += length
        if piece:
            await self._begin(piece, size)

    async def _begin(self, lines: Sequence[bytes | None], size: int) -> None:
        """Wait for room in the window, and begin to append them."""
        while self._open_lines and (
            self._open_lines + len(lines) > WINDOW_LINES or self._open_bytes + size > _WINDOW_BYTES
        ):
            self._has_room.clear()
            await self._has_room.wait()
        self._open_lines += len(lines)
        self._open_bytes += size
        # Each append begins before that of the next piece, so that the messages keep the order of
        # their lines.
        if self._key is None:
            plain = await self._services.body_thread.run(size, lambda: self._plain(lines, size))
            if plain is not None:
                answers = self._append_plain(plain, lines, size)
            else:
                answers = _as_lines(self._append_together(await self._build_all(lines, size)))
            self.pieces.put_nowait(_Piece(len(lines), size, asyncio.ensure_future(answers)))
        else:
            beginning = asyncio.ensure_future(
                self._append_by_key(await self._judge_all(lines, size))
            )
            self.pieces.put_nowait(
                _Piece(len(lines), size, asyncio.ensure_future(_as_lines(_ended(beginning))))
            )
            await asyncio.wait({beginning})

    async def _judge_all(
        self, lines: Sequence[bytes | None], size: int
    ) -> list[_Line | BatchResult]:
        return await self._services.body_thread.run(
            size, lambda: [self._judge(line) for line in lines]
        )

    def _judge(self, line: bytes | None) -> _Line | BatchResult:
        if line is None:
            return _refused(
                UNSET,
                too_large(
                    "bytes",
                    self._max_line_bytes,
                    f"a {self._form.unit} must have at most {self._max_line_bytes} bytes",
                ),
            )
        entry_id: str | UnsetType = UNSET
        try:
            entry = self._services.body_thread.read_now(
                self._form.read_entry, line, self._call.max_values
            )
            entry_id, given = entry.id, entry.message
            if isinstance(given, Refusal):
                raise under(given, "/message")
            if self._key is not None and entry_id is UNSET:
                raise invalid_field(
                    "/id",
                    "missing",
                    f"in a stream with an Idempotency-Key every {self._form.unit} needs an id",
                )
        except Refusal as refusal:
            return _refused(entry_id, refusal)
        return _Line(
            entry_id, given, fingerprint_of(line) if self._key is not None else "", len(line)
        )

    def _built(self, line: _Line, message_id: str) -> Message:
        """Raises Refusal."""
        now_ms = self._services.clock.wall_ms()
        try:
            built = build(
                line.given,
                self._topic,
                message_id=message_id,
                now_ms=now_ms,
                depth=LINE_DEPTH,
                traceparent=self._traceparent,
                copies=self._services.replicas.copies,
            )
        except MessagingError as error:
            # What is no JSON shows only here when it is in a `json` field; it is the line's,
            # not the message's.
            if is_malformed(error):
                raise
            raise under(error, "/message") from error
        return scheduled_message.delay(built, now_ms)

    # ----------------------------------------------------------------------------------------------
    # without key

    def _plain(self, lines: Sequence[bytes | None], size: int) -> _Plain | None:
        """The lines, where all are plain."""
        if size > THREAD_BYTES:
            return None
        entries: list[PlainEntry] = []
        for line in lines:
            entry = None if line is None else self._form.plain_entry(line, self._call.max_values)
            if entry is None:
                return None
            entries.append(entry)
        messages = [entry.message for entry in entries]
        message_ids = self._services.identifiers.many("msg", len(lines))
        now_ms = self._services.clock.wall_ms()
        rows = plain_rows.rows_of(
            messages,
            self._topic,
            message_ids,
            self._form.body_of,
            now_ms=now_ms,
            depth=LINE_DEPTH,
            traceparent=self._traceparent,
        )
        if rows is None:
            return None
        durability = strongest_of(messages)
        if not can_have(self._services, durability):
            return None
        return _Plain([entry.id for entry in entries], message_ids, rows, durability)

    async def _append_plain(self, plain: _Plain, lines: Sequence[bytes | None], size: int) -> bytes:
        """Append plain messages, as `_append_together` does, which also handles what the engine
        refuses.
        """
        services = self._services
        entry_ids, message_ids, rows, durability = plain
        try:
            placed = await plain_rows.append_rows(self._store, rows, durability=durability)
        except RejectedError:
            return await _as_lines(self._append_together(await self._build_all(lines, size)))
        except MessagingError as error:
            return b"".join(
                [codec.encode(_refused(entry_id, error)) + b"\n" for entry_id in entry_ids]
            )
        services.metrics.messages_in.inc(len(rows))
        status = 202 if is_late(services, placed.sureness, durability) else 201
        return (
            "\n".join(plain_rows.results_of(entry_ids, message_ids, rows, placed, status=status))
            + "\n"
        ).encode()

    async def _build_all(
        self, lines: Sequence[bytes | None], size: int
    ) -> list[_Built | BatchResult]:
        judged = await self._judge_all(lines, size)
        message_ids = self._services.identifiers.many("msg", len(lines))

        def build_all() -> list[_Built | BatchResult | _Line]:
            return [
                self._build_now(line, message_id)
                for line, message_id in zip(judged, message_ids, strict=True)
            ]

        built = await self._services.body_thread.run(size, build_all)
        return [
            await self._build_checked(one, message_id) if isinstance(one, _Line) else one
            for one, message_id in zip(built, message_ids, strict=True)
        ]

    def _build_now(
        self, line: _Line | BatchResult, message_id: str
    ) -> _Built | BatchResult | _Line:
        """The line itself where a check must be made in the process of schemas first."""
        if isinstance(line, BatchResult):
            return line
        try:
            return _Built(line, self._built(line, message_id))
        except ChecksPending:
            return line
        except MessagingError as error:
            return _refused(line.id, error)

    async def _build_checked(self, line: _Line, message_id: str) -> _Built | BatchResult:
        async def build() -> Message:
            return self._built(line, message_id)

        try:
            return _Built(line, await until_checked(build))
        except MessagingError as error:
            return _refused(line.id, error)

    async def _append_together(self, built: Sequence[_Built | BatchResult]) -> list[BatchResult]:
        """Append all that can be appended, in one append; the result of each."""
        answers = {
            index: answer for index, answer in enumerate(built) if isinstance(answer, BatchResult)
        }
        lines = {index: one.line for index, one in enumerate(built) if isinstance(one, _Built)}
        if lines:
            messages = {
                index: one.message for index, one in enumerate(built) if isinstance(one, _Built)
            }
            answers |= await self._append(lines, messages)
        return [answers[index] for index in range(len(built))]

    async def _append(
        self, lines: dict[int, _Line], messages: dict[int, Message]
    ) -> dict[int, BatchResult]:
        """Append messages; the results by index. Where the engine refuses them together, each is
        tried by itself.
        """
        durability = strongest_of([lines[index].given for index in messages])
        try:
            places = await append_all(self._services, None, self._topic, messages, durability)
        except RejectedError as error:
            if len(messages) == 1:
                return {index: _refused(lines[index].id, error) for index in messages}
            answers: dict[int, BatchResult] = {}
            for index, message in messages.items():
                answers |= await self._append(lines, {index: message})
            return answers
        except MessagingError as error:
            return {index: _refused(lines[index].id, error) for index in messages}
        return {
            index: BatchResult(
                id=lines[index].id,
                status=status_of(self._services, place, durability),
                receipt=receipt_of(message, place),
            )
            for (index, message), place in zip(messages.items(), places, strict=True)
        }

    # ----------------------------------------------------------------------------------------------
    # with key

    async def _append_by_key(self, judged: Sequence[_Line | BatchResult]) -> list[Answer]:
        """Each line is a request of its own, known by the stream's key and its id.

        Returns once every append has begun.
        """
        return [
            await self._append_once(line) if isinstance(line, _Line) else line for line in judged
        ]

    async def _append_once(self, line: _Line) -> Answer:
        try:
            begun = await until_checked(lambda: self._begin_once(line))
        except MessagingError as error:
            return _refused(line.id, error)
        if isinstance(begun, BatchResult):
            return begun
        message, appending = begun
        services, durability = self._services, strongest_of([line.given])

        async def appended() -> BatchResult:
            try:
                (place,) = await appending
            except MessagingError as error:
                return _refused(line.id, error)
            services.metrics.messages_in.inc()
            return BatchResult(
                id=line.id,
                status=status_of(services, place, durability),
                receipt=receipt_of(message, place),
            )

        return appended()

    async def _begin_once(
        self, line: _Line
    ) -> BatchResult | tuple[Message, Awaitable[list[Appended]]]:
        """Result of the line before, or the append that has begun.

        Raises MessagingError, ChecksPending.
        """
        services, topic = self._services, self._topic
        request = KeyedRequest(
            f"sendMessageStream {topic.name}", f"{self._key} {line.id}", line.fingerprint
        )
        message_id = services.identifiers.new("msg")
        make = await services.body_thread.ahead(
            line.byte_count, lambda: self._built(line, message_id)
        )
        before = await services.idempotency.lookup(
            request, window_ms=topic.settings.dedup_window_ms
        )
        if before is not None:
            ((stored, place),) = await services.idempotency.find(before)
            return BatchResult(
                id=line.id,
                status=before.status,
                receipt=receipt_of(stored, place, deduplicated=True),
            )
        message = make()
        return message, begin_keyed(
            services, request, topic, {0: message}, strongest_of([line.given])
        )


def _refused(entry_id: str | UnsetType, error: MessagingError) -> BatchResult:
    problem = document(error)
    return BatchResult(id=entry_id, status=problem.status, problem=problem)


async def _as_lines(answers: Awaitable[Sequence[BatchResult]]) -> bytes:
    return b"".join([codec.encode(answer) + b"\n" for answer in await answers])


async def _ended(beginning: "asyncio.Future[list[Answer]]") -> list[BatchResult]:
    return [
        answer if isinstance(answer, BatchResult) else await answer for answer in await beginning
    ]
