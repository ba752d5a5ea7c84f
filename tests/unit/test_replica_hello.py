"""Where a primary begins to send, and whom it refuses."""

import pytest

from app.replicas.frames import Hello
from app.replicas.sender import Refused
from storage.local.local_store import LocalMessageStore
from tests.support.builders import message, messages
from tests.support.lives import in_world
from tests.support.replicated import OPTIONS, SEGMENT_BYTES, sender_of
from tests.support.simulation import World


async def opened(world: World) -> LocalMessageStore:
    store = await world.open_store(OPTIONS)
    await store.create_topic("orders", queue_count=2)
    return store


async def hello_of(store: LocalMessageStore, *, units_end: int, end: int) -> Hello:
    """A replica that has the log up to there."""
    last_bytes = await store.read_log(max(0, units_end - 64), units_end)
    epochs = [(begin.epoch, begin.offset) for begin in store.epochs]
    return Hello(1, "b", b"", b"", SEGMENT_BYTES, end, units_end, last_bytes, epochs, 1_000)


def test_a_replica_is_sent_what_lies_behind_its_end():
    async def main(world: World) -> None:
        store = await opened(world)
        await store.append([message()])
        end = store.stored_offset()
        await store.append([message()])
        hello = await hello_of(store, units_end=end, end=end)
        assert await sender_of(world, store)._begin_of(hello) == end

    in_world(main)


def test_a_replica_whose_segment_is_closed_where_this_log_goes_on_is_refused():
    """It was the primary, closed the segment, and died before its next unit."""

    async def main(world: World) -> None:
        store = await opened(world)
        await store.append(messages(3, body_bytes=4_000))
        end = store.stored_offset()
        hello = await hello_of(store, units_end=end, end=SEGMENT_BYTES)
        with pytest.raises(Refused, match=f"parts from this one at {end}"):
            await sender_of(world, store)._begin_of(hello)
        await store.append([message()])
        with pytest.raises(Refused, match=f"parts from this one at {end}"):
            await sender_of(world, store)._begin_of(hello)

    in_world(main)


def test_a_replica_whose_segment_is_closed_here_too_goes_on_in_the_next():
    async def main(world: World) -> None:
        store = await opened(world)
        await store.append(messages(3, body_bytes=4_000))
        end = store.stored_offset()
        await store.append(messages(3, body_bytes=4_000))
        assert store.stored_offset() > SEGMENT_BYTES
        hello = await hello_of(store, units_end=end, end=SEGMENT_BYTES)
        assert await sender_of(world, store)._begin_of(hello) == SEGMENT_BYTES
        hello = await hello_of(store, units_end=end, end=end)
        assert await sender_of(world, store)._begin_of(hello) == end

    in_world(main)


async def log_of_an_ended_epoch(world: World) -> LocalMessageStore:
    """Two units; then the process was killed."""
    store = await opened(world)
    await store.append([message()])
    await store.append([message()])
    return store


@pytest.mark.parametrize(
    ("epochs", "was_lost"),
    [
        ([(1, 0)], True),  # it has more of the epoch that ended here
        ([(1, 0), (2, 1 << 13)], False),  # an epoch that is not known here
    ],
)
def test_of_a_replica_that_has_more_of_an_epoch_it_is_known_that_the_service_has_lost_that(
    epochs, was_lost
):
    async def again(world: World) -> None:
        store = await opened(world)
        end = store.stored_offset()
        assert [begin.epoch for begin in store.epochs] == [1, 2]
        await store.append([message()])
        longer = end + 512
        hello = Hello(1, "b", b"", b"", SEGMENT_BYTES, longer, longer, b"x" * 64, epochs, 1_000)
        with pytest.raises(Refused) as refused:
            await sender_of(world, store)._begin_of(hello)
        refused_at = refused.value.parts_at
        assert (refused.value.was_lost, refused_at) == ((True, end) if was_lost else (False, None))

    async def first(world: World) -> None:
        await log_of_an_ended_epoch(world)

    in_world(again, in_world(first))


def test_what_a_replica_has_more_than_a_promoted_one_was_not_lost_by_that():
    async def promoted(world: World) -> None:
        store = await opened(world)
        end = store.stored_offset()
        store.epochs.note(1_002, end)
        await store.append([message()])
        longer = end + 512
        hello = Hello(1, "b", b"", b"", SEGMENT_BYTES, longer, longer, b"x" * 64, [(1, 0)], 1_000)
        with pytest.raises(Refused) as refused:
            await sender_of(world, store)._begin_of(hello)
        assert (refused.value.parts_at, refused.value.was_lost) == (end, False)

    async def first(world: World) -> None:
        await log_of_an_ended_epoch(world)

    in_world(promoted, in_world(first))
