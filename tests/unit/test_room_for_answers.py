"""The room of a receive's answer, which is found while no other receive of the group is made."""

import asyncio
import threading
from types import SimpleNamespace

from app.bodies.budget import BodyBudget, BodyShare
from app.bodies.thread import THREAD_BYTES, BodyThread
from app.consume.handlers import AnswerRoom
from storage.message import QueueId, StoredMessage

MIB = 1 << 20
LARGE = StoredMessage(
    queue=QueueId("orders", 0), message_id="msg_1", body=b"x" * MIB, born_at_ms=0,
    stored_at_ms=0, queue_offset=0,
)  # fmt: skip


def test_where_there_is_plenty_of_room_it_waits_for_no_work_on_large_bodies():
    has_begun, is_over = threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        is_over.wait()

    async def main() -> None:
        thread, share = BodyThread(), BodyShare(BodyBudget(256 * MIB))
        working = asyncio.ensure_future(thread.run(THREAD_BYTES, work))
        try:
            assert await asyncio.to_thread(has_begun.wait, 10)
            async with asyncio.timeout(5):
                await AnswerRoom(SimpleNamespace(share=share, thread=thread)).fit([LARGE])
        finally:
            is_over.set()
            await working
            await thread.aclose()

    asyncio.run(main())
