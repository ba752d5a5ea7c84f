"""The end of a replica in the place of the service."""

from app.life import exit_codes, replica_life
from app.life.machine import Machine
from app.life.replica_life import ReplicaLife
from app.names.registrar import CannotRegister
from app.names.registration import NodeRegistration
from app.names.schemas import NodeRegistered
from app.observability.metrics import Metrics
from app.settings import Settings


class OddServer:
    """A name server that cannot be reached, and whose link cannot be closed either."""

    url = "http://names"

    async def register(self, node: str, registration: NodeRegistration) -> NodeRegistered:
        raise CannotRegister("the link is cut")

    async def unregister(self, node: str) -> None:
        """It is never registered."""

    async def aclose(self) -> None:
        raise ValueError("of a bug")


async def test_a_replica_stops_following_though_the_link_to_a_name_server_cannot_be_closed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(replica_life, "servers_of", lambda *_: [OddServer()])
    settings = Settings(data_dir=tmp_path, replica={"primary": "127.0.0.1:1"})
    replica = ReplicaLife(settings, Metrics(), Machine(settings))
    replica.start()
    following = replica._following
    assert following is not None

    await replica.close()

    assert following.done()
    assert replica.exit_code == exit_codes.BUG
