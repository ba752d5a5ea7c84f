"""`escrowmq store import` takes over a broker's store, `export` makes one of a data directory."""

from pathlib import Path

import pytest

from tests.rocketmq.journey import Journey
from tests.rocketmq.store_commands import hand_over

pytestmark = pytest.mark.rocketmq


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_store_is_imported_from_a_broker_and_exported_to_one(stage, tmp_path, killed):
    journey = Journey(stage, seed=19)
    broker = journey.broker()
    journey.produce(broker, 8)
    journey.transact(broker, 6)
    journey.consume(broker, at_least=6, refuse=1)
    journey.produce(broker, 4)
    journey.end_broker(broker, killed=killed)
    brokers_files = files(stage.data / "store")

    hand_over("import", stage.data / "store", tmp_path / "imported")
    assert files(stage.data / "store") == brokers_files
    stage.data = tmp_path / "imported"
    service = journey.service()
    journey.check_states(service)
    journey.decide(service, 1)
    journey.send(service, 4)
    journey.begin(service, 2)
    journey.receive(service, 4, refuse=1)
    journey.end_service(service, killed=killed)

    hand_over("export", stage.data, tmp_path / "exported" / "store")
    stage.data = tmp_path / "exported"
    journey.finish(journey.broker())


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}
