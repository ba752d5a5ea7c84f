"""C34: a replica on a real file system without space, in whatever way it ends meanwhile.

It acknowledges nothing that it does not have, loses nothing that it has acknowledged, and follows
again by itself once there is space.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from app.disk.spare_space import SPARE_BYTES
from app.life.exit_codes import STORAGE_FAILED
from storage.formats.epochs import EPOCHS_OF_A_PROMOTION
from tests.fault.campaign_size import sized
from tests.support.http import ok, until
from tests.support.replica import Primary, Replica, note_of, of, promote, read_ids
from tests.support.small_disk import IN_PLACE, fill, give_back, mounted

pytestmark = pytest.mark.faults

ROUNDS = sized(ci=1, full=10)
SEND = "/v1/topics/orders/messages/raw"
SEGMENT_BYTES = 1 << 20
SEGMENTS = {"ESCROWMQ_LOCAL__SEGMENT_BYTES": str(SEGMENT_BYTES)}
SERVICE = {**SEGMENTS, "ESCROWMQ_REPLICA__COPIES": "2", "ESCROWMQ_LOCAL__SYNC_TIMEOUT_MS": "500"}
REPLICA = {**SEGMENTS, "ESCROWMQ_LOCAL__PREPARE_AHEAD_BYTES": str(64 << 10)}


@pytest.fixture(params=IN_PLACE)
def small_disk(tmp_path, request) -> Iterator[Path]:
    with mounted(request.param, tmp_path, size_mib=16 + 5 * ROUNDS) as disk:
        yield disk


def test_a_replica_goes_through_full_disks_and_loses_nothing_that_it_has_acknowledged(
    small_disk, tmp_path
):
    copied: list[str] = []
    with ExitStack() as stack:
        service = stack.enter_context(Primary(tmp_path / "a", environment=SERVICE))
        api = stack.enter_context(service.client())
        replica = Replica(small_disk / "b", of(service.ha_port), environment=REPLICA)
        replica.log_path = tmp_path / "b.log"  # no line of it is missing
        stack.enter_context(replica)
        ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
        for _ in range(ROUNDS):
            until(lambda: is_copied(api, copied), "the replica counts")
            fill(small_disk)
            while is_copied(api, copied, size=50_000):
                pass
            until(lambda: "replica_waits" in replica.log(), "it says so")
            replica.kill()
            for _ in range(2):
                fill(small_disk)
                replica.start(until_ready=False)
                until(lambda: answers(replica), "it runs")
                assert not is_copied(api, copied, size=50_000)
                assert replica.terminate() == 0
            replica.start(until_ready=False)
            until(lambda: answers(replica), "it runs")
            give_back(small_disk)
            until(lambda: is_copied(api, copied), "the replica counts again")
        service.kill()
        fill(small_disk)
        assert replica.terminate() == 0
        assert promote(replica.data_dir, "--yes", segment_bytes=SEGMENT_BYTES).returncode == 0
        promoted = replica.service()
        promoted.log_path = replica.log_path
        with promoted:
            assert set(copied) <= read_ids(promoted)
            give_back(small_disk)
            with promoted.client() as api:
                until(lambda: api.post(SEND, content=b"x").is_success, "it takes messages")
                assert epoch_of(api) > EPOCHS_OF_A_PROMOTION


@pytest.fixture
def stopped(small_disk, tmp_path) -> Iterator[Replica]:
    """A replica that has ended in order on a disk with space, beside a service that runs."""
    with ExitStack() as stack:
        service = stack.enter_context(Primary(tmp_path / "a", environment=SERVICE))
        replica = Replica(small_disk / "b", of(service.ha_port), environment=REPLICA)
        replica.log_path = tmp_path / "b.log"
        stack.enter_context(replica)
        with service.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            until(lambda: is_copied(api, []), "the replica counts")
        assert replica.terminate() == 0
        yield replica


def test_a_replica_whose_disk_is_full_since_it_was_stopped_is_promoted_and_serves(
    stopped, small_disk
):
    fill(small_disk)
    with promoted_to_service(stopped) as promoted, promoted.client() as api:
        assert len(read_ids(promoted)) == 1
        assert epoch_of(api) > EPOCHS_OF_A_PROMOTION


def test_a_replica_whose_disk_is_full_since_it_was_stopped_follows_there_and_can_be_promoted(
    stopped, small_disk, tmp_path
):
    fill(small_disk)
    stopped.start()  # and has what its service has
    assert stopped.terminate() == 0
    fill(small_disk)
    with promoted_to_service(stopped) as promoted:
        assert len(read_ids(promoted)) == 1


def test_the_space_that_a_replica_starts_with_is_taken_back_when_there_is_room(stopped, small_disk):
    spare = stopped.data_dir / "spare"
    fill(small_disk)
    stopped.start()
    assert 0 < spare.stat().st_size < SPARE_BYTES
    give_back(small_disk)
    until(lambda: spare.stat().st_size == SPARE_BYTES, "it is there for a promotion")


def test_a_replica_for_whose_start_there_is_no_space_at_all_waits_for_it(stopped, small_disk):
    (stopped.data_dir / "spare").unlink()
    fill(small_disk)
    stopped.start(until_ready=False)
    until(lambda: "replica_waits" in stopped.log(), "it says so")
    assert answers(stopped)
    give_back(small_disk)
    until(lambda: has_all(stopped), "it follows")


def test_a_replica_that_has_no_space_to_set_its_log_aside_waits_and_does_it_then(
    small_disk, tmp_path
):
    with ExitStack() as stack:
        service = stack.enter_context(Primary(tmp_path / "a", environment=SEGMENTS))
        environment = {**REPLICA, "ESCROWMQ_REPLICA__SET_ASIDE": "true"}
        replica = Replica(small_disk / "b", of(service.ha_port), environment=environment)
        replica.log_path = tmp_path / "b.log"
        stack.enter_context(replica)
        with service.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 1}), 201)
            ok(api.post(SEND, content=b"x"), 201)
        service.wait_until_copied()
        service.terminate()
        shutil.copytree(service.data_dir, tmp_path / "before")
        service.start()
        with service.client() as api:
            service.wait_until_copied()
            ok(api.post(SEND, content=b"only of this history"), 201)
        service.wait_until_copied()
        replica.kill()
        service.kill()
        shutil.rmtree(service.data_dir)
        shutil.copytree(tmp_path / "before", service.data_dir)
        service.start()
        service.kill()
        service.start()  # in a later epoch than the one before
        with service.client() as api:
            ok(api.post(SEND, content=b"of the other history"), 201)
        (replica.data_dir / "spare").unlink()
        fill(small_disk)
        replica.start(until_ready=False)
        until(lambda: "replica_waits" in replica.log(), "it says so")
        assert answers(replica)
        give_back(small_disk)
        until(lambda: "log_set_aside" in replica.log(), "it is set aside")
        until(lambda: has_all(replica), "it follows")


def test_a_promotion_for_which_there_is_no_space_at_all_says_so_and_can_be_repeated(
    stopped, small_disk
):
    (stopped.data_dir / "spare").unlink()
    fill(small_disk)
    refused = promote(stopped.data_dir, "--yes", segment_bytes=SEGMENT_BYTES)
    assert refused.returncode == STORAGE_FAILED, refused.stderr
    assert "No space left on device" in refused.stderr
    assert note_of(stopped.data_dir), "it is a replica as before"
    give_back(small_disk)
    done = promote(stopped.data_dir, "--yes", segment_bytes=SEGMENT_BYTES)
    assert done.returncode == 0, done.stderr


def has_all(replica: Replica) -> bool:
    """Has it what its service has?"""
    with replica.client() as api, suppress(httpx.TransportError):
        return api.get("/readyz?role=replica").status_code == 200
    return False


def promoted_to_service(stopped: Replica) -> Primary:
    """The service of the replica once it is promoted; it is not started yet."""
    done = promote(stopped.data_dir, "--yes", segment_bytes=SEGMENT_BYTES)
    assert done.returncode == 0, done.stderr
    promoted = stopped.service()
    promoted.log_path = stopped.log_path
    promoted.configure(ESCROWMQ_REPLICA__COPIES="1")
    return promoted


def epoch_of(api: httpx.Client) -> int:
    """In which the service is."""
    return int(ok(api.get("/v1/names/groups/escrowmq"))["primary"]["epoch"])


def is_copied(api: httpx.Client, copied: list[str], *, size: int = 1) -> bool:
    """Is a message that is sent now on both disks?"""
    answer = api.post(SEND, content=b"x" * size)
    if not answer.is_success or answer.json()["durability"] != "replicated":
        return False
    copied.append(answer.json()["message_id"])
    return True


def answers(replica: Replica) -> bool:
    with replica.client() as api, suppress(httpx.TransportError):
        return api.get("/readyz?role=replica").status_code in (200, 503)
    return False
