"""Registration with name servers: when, with what, and what follows from the answers."""

import asyncio

import pytest
from msgspec import UNSET, UnsetType
from structlog.testing import capture_logs

from app.names import views
from app.names.nodes import NodeIdentity, ServiceNode
from app.names.options import NameOptions
from app.names.registrar import CannotRegister, Deposed, OwnTable, Registrar
from app.names.registration import NodeRegistration
from app.names.schemas import NodeRegistered
from app.names.table import NameTable
from app.registry.topics import TopicSettings
from app.replicas.primary_choice import KnownPrimary
from tests.support.lives import in_world
from tests.support.simulation import World

OPTIONS = NameOptions()
SHOP = NodeIdentity("a", "default", "shop", "http://a", "a:10912", "1")


class Server:
    """A name server at the other end of a link that can be cut."""

    def __init__(self, world: World, url: str = "http://names") -> None:
        self.url = url
        self.table = NameTable(OPTIONS, world.clock)
        self.is_cut = False
        self.silent = False
        self.has_bug = False
        self.topics: list[int | None] = []  # how many were sent, with each registration
        self.is_closed = False

    async def register(self, node: str, registration: NodeRegistration) -> NodeRegistered:
        await self._reach()
        self.topics.append(len(registration.topics) if registration.topics else None)
        return await OwnTable(self.table).register(node, registration)

    async def unregister(self, node: str) -> None:
        await self._reach()
        self.table.unregister(node)

    async def aclose(self) -> None:
        self.is_closed = True

    async def _reach(self) -> None:
        if self.silent:
            await asyncio.Event().wait()
        if self.has_bug:
            raise ValueError("of a bug")
        if self.is_cut:
            raise CannotRegister("the link is cut")


class Shop:
    """A service with topics, and its registrar."""

    def __init__(self, world: World, *servers: Server, epoch: int = 1) -> None:
        self.topics = ["orders"]
        self.is_ready = True
        self.deposed: list[Deposed] = []
        self.table = NameTable(OPTIONS, world.clock)
        self.node = ServiceNode(
            SHOP,
            service_id="shop",
            epoch=lambda: epoch,
            end_offset=lambda: 0,
            topics=lambda: [TopicSettings(topic=one, retention_ms=1) for one in self.topics],
            is_ready=lambda: self.is_ready,
        )
        self.registrar = Registrar(
            self.node, self.table, servers, OPTIONS, on_deposed=self.deposed.append
        )

    def change(self, *topics: str) -> None:
        self.topics = [*topics]
        self.node.note_change()
        self.registrar.note_change()


def test_a_node_registers_at_its_start_and_every_three_seconds_and_sends_its_topics_once():
    async def main(world: World) -> None:
        server = Server(world)
        shop = Shop(world, server)
        await shop.registrar.start()
        assert [*server.table.routes("orders")] == [*shop.table.routes("orders")] == ["shop"]
        await asyncio.sleep(9.5)
        assert server.topics == [None, 1, None, None, None]
        await shop.registrar.stop()

    in_world(main)


def test_a_change_of_topics_is_registered_at_once_everywhere():
    async def main(world: World) -> None:
        first, second = Server(world, "http://1"), Server(world, "http://2")
        shop = Shop(world, first, second)
        await shop.registrar.start()
        shop.change("bills")
        await asyncio.sleep(0.1)
        for table in (first.table, second.table, shop.table):
            assert [*table.routes("bills")] == ["shop"]
        assert first.topics == second.topics == [None, 1, None, 1]
        await shop.registrar.stop()

    in_world(main)


def test_a_server_that_starts_late_gets_everything_with_the_next_heartbeat():
    async def main(world: World) -> None:
        server = Server(world)
        server.is_cut = True
        shop = Shop(world, server)
        await shop.registrar.start()
        assert shop.registrar.reached == 0
        server.is_cut = False
        await asyncio.sleep(OPTIONS.heartbeat_ms / 1000 + 0.1)
        assert [*server.table.routes("orders")] == ["shop"]
        assert shop.registrar.reached == 1
        await shop.registrar.stop()

    in_world(main)


def test_a_server_that_is_away_is_logged_once_and_when_it_is_back():
    async def main(world: World) -> None:
        server = Server(world)
        shop = Shop(world, server)
        await shop.registrar.start()
        with capture_logs() as logs:
            server.is_cut = True
            await asyncio.sleep(10)
            server.is_cut = False
            await asyncio.sleep(5)
        found = [(one["event"], one["server"]) for one in logs]
        assert found == [("not_registered", server.url), ("registered_again", server.url)]
        await shop.registrar.stop()

    in_world(main)


@pytest.mark.parametrize("after_start", [False, True])
def test_a_server_that_never_answers_holds_up_neither_the_start_nor_the_others_nor_the_end(
    after_start,
):
    async def main(world: World) -> None:
        silent, server = Server(world, "http://silent"), Server(world)
        silent.silent = not after_start
        shop = Shop(world, silent, server)
        begun = world.loop.now
        await shop.registrar.start()
        assert world.loop.now - begun <= 1.1
        silent.silent = True
        await asyncio.sleep(4)  # it is being asked
        shop.change("bills")
        await asyncio.sleep(0.1)
        assert [*server.table.routes("bills")] == ["shop"]
        begun = world.loop.now
        await shop.registrar.stop()
        assert world.loop.now - begun < (2 if after_start else 0.1)
        assert server.table.nodes() == shop.table.nodes() == []
        assert silent.is_closed
        assert server.is_closed

    in_world(main)


def test_every_server_is_closed_though_the_last_word_to_one_fails():
    async def main(world: World) -> None:
        first, second = Server(world, "http://1"), Server(world, "http://2")
        shop = Shop(world, first, second)
        await shop.registrar.start()
        first.has_bug = True

        with pytest.raises(ValueError, match="of a bug"):
            await shop.registrar.stop()

        assert (first.is_closed, second.is_closed) == (True, True)

    in_world(main)


def test_a_node_that_is_not_ready_says_so_and_names_no_topics():
    async def main(world: World) -> None:
        server = Server(world)
        shop = Shop(world, server)
        shop.is_ready = False
        await shop.registrar.start()
        (found,) = views.all_nodes(server.table)
        assert (found.ready, found.role) == (False, "primary")
        assert server.table.data_version_of("shop") == ""
        shop.is_ready = True
        shop.registrar.note_change()
        await asyncio.sleep(0.1)
        assert views.all_nodes(server.table)[0].ready
        assert [*server.table.routes("orders")] == ["shop"]
        await shop.registrar.stop()

    in_world(main)


def successor(server: Server, *, epoch: int = 1001, service_id: str = "shop") -> None:
    later = NodeRegistration(
        group="shop", role="primary", epoch=epoch, end_offset=0, service_id=service_id
    )
    server.table.register("b", later)


def test_a_service_whose_successor_is_known_does_not_start():
    async def main(world: World) -> None:
        server = Server(world)
        successor(server)
        shop = Shop(world, server)
        with pytest.raises(Deposed, match=r"the node b is the service now, in epoch 1001"):
            await shop.registrar.start()
        await shop.registrar.stop()
        assert [one.node for one in server.table.nodes()] == ["b"]

    in_world(main)


def test_a_service_that_runs_ends_when_it_hears_of_its_successor():
    async def main(world: World) -> None:
        near, far = Server(world, "http://near"), Server(world, "http://far")
        far.is_cut = True
        successor(far)
        shop = Shop(world, near, far)
        await shop.registrar.start()
        await asyncio.sleep(10)
        assert shop.deposed == []
        far.is_cut = False
        await asyncio.sleep(3.1)
        assert len(shop.deposed) == 1
        await shop.registrar.stop()

    in_world(main)


def test_a_service_of_the_later_epoch_goes_on():
    async def main(world: World) -> None:
        server = Server(world)
        successor(server, epoch=1)
        shop = Shop(world, server, epoch=1001)
        await shop.registrar.start()
        await asyncio.sleep(10)
        assert shop.deposed == []
        assert server.table.primary_of("shop").node == "a"
        await shop.registrar.stop()

    in_world(main)


def test_the_primary_of_the_latest_epoch_that_any_server_knows_is_the_primary():
    async def main(world: World) -> None:
        first, second = Server(world, "http://1"), Server(world, "http://2")
        second.table.register("b", promoted("b:10912"))
        shop = Shop(world, first, second)
        assert shop.registrar.primary is None
        await shop.registrar.start()
        assert shop.registrar.primary == KnownPrimary("b:10912", 1_001)
        second.is_cut = True  # what it has said counts until it says something else
        await asyncio.sleep(4)
        assert shop.registrar.primary == KnownPrimary("b:10912", 1_001)
        second.is_cut = False
        second.table.register("b", promoted(UNSET))  # serves no replicas
        await asyncio.sleep(4)
        assert shop.registrar.primary == KnownPrimary("a:10912", 1)
        await shop.registrar.stop()

    in_world(main)


def promoted(replication_address: str | UnsetType) -> NodeRegistration:
    """Another node, of a later epoch; that it is of the same service is not known."""
    return NodeRegistration(
        group="shop",
        role="primary",
        epoch=1_001,
        end_offset=0,
        replication_address=replication_address,
    )
