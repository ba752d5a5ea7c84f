"""A registry that is deleted, replaced, locked, or of another store: nothing is lost in silence,
nothing is a 500.
"""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.support.http import assert_problem, ok, until
from tests.support.server import Server

GROUP = {"topics": [{"topic": "orders", "filter": {"kind": "tag", "expression": "paid"}}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("registry") / "data", dev=False) as started:
        with started.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            ok(api.put("/v1/groups/billing", json=GROUP), 201)
        yield started


def registry(server: Server) -> Path:
    return server.data_dir / "registry.db"


def unready(api: httpx.Client) -> bool:
    return api.get("/readyz").status_code == 503


def move_away(file: Path, kept: Path) -> None:
    file.rename(kept)


def replace(file: Path, kept: Path) -> None:
    file.rename(kept)
    shutil.copy(kept, file)


@pytest.mark.parametrize(
    ("take", "reason"),
    [(move_away, "deleted or moved away"), (replace, "replaced by another file")],
)
def test_a_registry_that_is_taken_away_takes_no_change_while_messages_go_on_and_is_found_again(
    server, take, reason, tmp_path
):
    file, kept = registry(server), tmp_path / "kept.db"
    with server.client() as api:
        take(file, kept)
        # At once, not only when the watch has noticed: a change that is answered must be there
        # after a restart.
        refused = api.post("/v1/topics", json={"topic": f"lost-{take.__name__}"})
        until(lambda: unready(api), "it is noticed", seconds=30)
        ready = api.get("/readyz")
        sent = ok(api.post("/v1/topics/orders/messages", json={"payload": "x", "tag": "paid"}), 201)
        received = ok(api.post("/v1/groups/billing/receive", json={"max_messages": 10}))["messages"]

        kept.rename(file)
        until(lambda: not unready(api), "it is found again", seconds=30)
        made = ok(api.post("/v1/topics", json={"topic": f"made-{take.__name__}", "queues": 1}), 201)

        assert reason in assert_problem(refused, 503, "registry_unavailable")["detail"]
        assert reason in assert_problem(ready, 503, "registry_unavailable")["detail"]
        assert sent["message_id"] in [message["message_id"] for message in received]
        assert ok(api.get(f"/v1/topics/{made['topic']}")) == made
        assert_problem(api.get(f"/v1/topics/lost-{take.__name__}"), 404, "topic_not_found")


def test_a_registry_that_another_process_locks_is_503_and_nothing_is_changed(server):
    with (
        closing(sqlite3.connect(registry(server), isolation_level=None)) as other,
        server.client() as api,
    ):
        other.execute("BEGIN IMMEDIATE")
        refused = api.put("/v1/groups/locked-out", json=GROUP)
        ready = api.get("/readyz").status_code
        other.execute("ROLLBACK")

        assert "locks it" in assert_problem(refused, 503, "registry_unavailable")["detail"]
        assert ready == 200
        assert_problem(api.get("/v1/groups/locked-out"), 404, "group_not_found")
        ok(api.put("/v1/groups/locked-out", json=GROUP), 201)
    assert "Traceback" not in server.log()


def delete(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("lose", [delete, empty])
def test_a_start_with_another_registry_serves_nothing_and_says_why_until_it_is_put_back_or_accepted(
    tmp_path, lose
):
    first = Server(tmp_path / "data", dev=False)
    with first, first.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        ok(api.put("/v1/groups/billing", json=GROUP), 201)
        sent = ok(api.post("/v1/topics/orders/messages", json={"payload": "x"}), 201)["message_id"]
        assert first.terminate() == 0
        file, kept = registry(first), tmp_path / "kept.db"
        shutil.copy(file, kept)

        lose(file)
        first.start(until_ready=False)
        until(lambda: "registry_is_another" in first.log(), "it says why", seconds=60)
        refused: list[Callable[[], httpx.Response]] = [
            lambda: api.get("/readyz"),
            lambda: api.get("/v1/groups/billing"),
            lambda: api.put("/v1/groups/billing", json=GROUP),
            lambda: api.get("/v1/topics/orders/queues/0/messages"),
        ]
        for ask in refused:
            assert (
                "--accept-registry" in assert_problem(ask(), 503, "registry_unavailable")["detail"]
            )
        ok(api.get("/livez"))
        assert first.terminate() == 0

        for leftover in tmp_path.glob("data/registry.db*"):
            leftover.unlink()
        shutil.copy(kept, file)
        first.start()
        assert ok(api.get("/v1/groups/billing"))["topics"][0]["topic"] == "orders"
        assert first.terminate() == 0

    lose(registry(first))
    accepting = Server(tmp_path / "data", "--accept-registry", dev=False)
    with accepting, accepting.client() as api:
        assert [
            message["message_id"]
            for message in ok(api.get("/v1/topics/orders/queues/0/messages"))["messages"]
        ] == [sent]
        assert accepting.terminate() == 0
    with Server(tmp_path / "data", dev=False) as again, again.client() as api:
        ok(api.get("/v1/topics/orders"))


def test_a_registry_of_a_later_release_is_refused_in_one_line_and_is_left_as_it_is(tmp_path):
    with Server(tmp_path / "data", dev=False) as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders"}), 201)
        assert server.terminate() == 0
        with closing(sqlite3.connect(registry(server))) as opened, opened:
            (known,) = opened.execute("SELECT version_num FROM alembic_version").fetchone()
            opened.execute("UPDATE alembic_version SET version_num = '9999'")
        before = registry(server).read_bytes()

        server.start(until_ready=False)

        assert server.wait() == 78
        (failed,) = [line for line in server.log().splitlines() if "service_failed" in line]
        assert f"it has revision 9999, and this release knows them up to {known}" in failed
        assert registry(server).read_bytes() == before
        with closing(sqlite3.connect(registry(server))) as opened, opened:
            opened.execute("UPDATE alembic_version SET version_num = ?", [known])
        server.start()
        with server.client() as api:
            ok(api.get("/v1/topics/orders"))


@pytest.mark.parametrize("name", ["a?b", "a%41", "a#b c", "ä;b", "not-unicode-\udcff"])
def test_the_registry_is_in_the_folder_of_the_data_whatever_its_name(tmp_path, name):
    data = tmp_path / "around" / name / "data"
    data.parent.mkdir(parents=True)
    with Server(data, dev=False) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        assert server.terminate() == 0

        assert [file.name for file in data.glob("registry.db")] == ["registry.db"]
        assert list((tmp_path / "around").iterdir()) == [tmp_path / "around" / name]

        server.start()
        ok(api.get("/v1/topics/orders"))


def test_a_folder_in_the_place_of_the_registry_is_refused_in_one_line(tmp_path):
    (tmp_path / "data" / "registry.db").mkdir(parents=True)
    server = Server(tmp_path / "data", dev=False)
    server.start(until_ready=False)

    assert server.wait() == 78
    (failed,) = [line for line in server.log().splitlines() if '"level": "info"' not in line]
    assert f"{tmp_path / 'data' / 'registry.db'} is not a file" in failed
