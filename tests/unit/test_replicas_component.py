"""The place of replicas in the life of a service: first to start, last to stop."""

import asyncio
from pathlib import Path

import pytest

from app.components.replicas import ReplicasComponent
from app.replicas.frames import Ack
from app.replicas.listener import ReplicaListener
from app.replicas.missing_replicas import MissingReplicas
from app.replicas.options import ReplicaOptions
from storage.errors import StoreClosed
from storage.local.local_store import LocalMessageStore
from storage.message import Durability
from tests.support.builders import message
from tests.support.lives import in_world
from tests.support.replicated import OPTIONS, SEGMENT_BYTES, sender_of
from tests.support.simulation import ROOT, World

LISTENS = ReplicaOptions(ha_host="127.0.0.1", copies=2)
LISTENS_NOWHERE = ReplicaOptions()  # no socket in a simulation


async def with_the_last_message(
    world: World, options: ReplicaOptions, stopping: asyncio.Event
) -> tuple[LocalMessageStore, ReplicasComponent]:
    """A store of which a connected replica has all but the last message."""
    store = await LocalMessageStore.open(
        ROOT, OPTIONS, world.vfs, world.clock, world.identifiers, runner=world.runner, copies=2
    )
    await store.create_topic("orders", queue_count=1)
    store.note_copy("b", 0)
    await store.append([message()], durability=Durability.BUFFERED)
    listener = listener_of(world, store, options)
    return store, component_of(world, store, listener, stopping)


def listener_of(world: World, store: LocalMessageStore, options: ReplicaOptions) -> ReplicaListener:
    return ReplicaListener(
        store, SEGMENT_BYTES, Path("data"), world.clock, options, registry_changes=lambda: 0
    )


def component_of(
    world: World, store: LocalMessageStore, listener: ReplicaListener, stopping: asyncio.Event
) -> ReplicasComponent:
    missing = MissingReplicas(store, None, world.clock, ReplicaOptions())
    return ReplicasComponent(listener, missing, stopping)


def test_a_stop_lets_connected_replicas_get_the_last_message():
    async def main(world: World) -> None:
        store, component = await with_the_last_message(world, LISTENS, asyncio.Event())
        stopping = asyncio.ensure_future(component.stop())
        await asyncio.sleep(1)  # of the simulation
        assert not stopping.done()
        with pytest.raises(StoreClosed):
            await store.append([message()])  # of a request in progress
        store.note_copy("b", store.stored_offset())
        await stopping
        assert store.unsafe_bytes == 0
        assert world.loop.now < 1.5

    in_world(main)


def test_a_stop_lets_a_connected_replica_get_the_last_message_though_one_disk_is_enough():
    async def main(world: World) -> None:
        store = await world.open_store(OPTIONS)
        await store.create_topic("orders", queue_count=1)
        listener = listener_of(world, store, ReplicaOptions())
        component = component_of(world, store, listener, asyncio.Event())
        sender = sender_of(world, store)
        sender.node = "b"
        this = asyncio.current_task()
        assert this is not None
        listener._senders[this] = sender
        await store.append([message()])
        stopping = asyncio.ensure_future(component.stop())
        await asyncio.sleep(1)  # of the simulation
        assert not stopping.done()
        end = store.stored_offset()
        sender.ack = Ack(end, end)
        store.note_copy("b", end)
        await stopping
        assert world.loop.now < 1.5

    in_world(main)


@pytest.mark.parametrize(("is_gone", "seconds"), [(True, 0), (False, 2)])
def test_a_stop_does_not_wait_long_for_replicas_that_do_not_answer(is_gone, seconds):
    async def main(world: World) -> None:
        store, component = await with_the_last_message(world, LISTENS, asyncio.Event())
        if is_gone:
            store.forget_copy("b")
        begun = world.loop.now
        await component.stop()
        assert abs(world.loop.now - begun - seconds) < 0.5
        assert store.unsafe_bytes > 0

    in_world(main)


@pytest.mark.parametrize("ends", ["copied", "stopped"])
def test_a_start_ends_when_the_log_is_copied_or_the_service_is_to_end(ends):
    async def main(world: World) -> None:
        to_end = asyncio.Event()
        store, component = await with_the_last_message(world, LISTENS_NOWHERE, to_end)
        starting = asyncio.ensure_future(component.start())
        await asyncio.sleep(100)  # of the simulation
        assert not starting.done()
        if ends == "copied":
            store.note_copy("b", store.stored_offset())
        else:
            to_end.set()
        await starting

    in_world(main)
