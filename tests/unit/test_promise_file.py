"""The promise of a node on its disk: no file of another program is read as one, or overwritten."""

import pytest

from app.life import exit_codes
from app.life.machine import Machine
from app.life.replica_life import ReplicaLife
from app.life.service_life import ServiceLifecycle
from app.observability.metrics import Metrics
from app.replicas.folder import NoteDamaged, read_promise, write_promise
from app.replicas.promise import Promise
from app.settings import Settings
from tests.support.http import reached

NODES = {"node": "a", "nodes": ["a", "b"], "primary": "127.0.0.1:1"}
NAMES = {"servers": ["http://127.0.0.1:1"]}


def test_a_promise_is_read_as_it_was_written(tmp_path):
    assert read_promise(tmp_path) == Promise()
    write_promise(tmp_path, Promise(1_500, "b"))
    assert read_promise(tmp_path) == Promise(1_500, "b")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"epoch": 3}', '{"to": "Ann", "node": "x"}'])
def test_a_file_that_is_no_promise_is_refused(tmp_path, content):
    (tmp_path / "promise.json").write_text(content)

    with pytest.raises(NoteDamaged, match=r"promise\.json is damaged, or of another program"):
        read_promise(tmp_path)


@pytest.mark.parametrize("role", ["replica", "service"])
async def test_no_node_starts_beside_the_promise_of_another_program(tmp_path, role):
    (tmp_path / "promise.json").write_text('{"to": "Ann"}')
    settings = Settings(data_dir=tmp_path, replica=NODES, names=NAMES)
    make = ReplicaLife if role == "replica" else ServiceLifecycle
    life = make(settings, Metrics(), Machine(settings))

    life.start()
    await reached(lambda: life.exit_code, "it has ended")
    await life.close()

    assert life.exit_code == exit_codes.CONFIGURATION
    assert (tmp_path / "promise.json").read_text() == '{"to": "Ann"}'
