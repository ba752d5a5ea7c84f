"""The life cycle starts, runs, measures and stops the components of its list, whatever they are."""

import asyncio
import errno
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from app.components.component import Component, Gauge
from app.life import exit_codes
from app.life import service_life as lifecycle
from app.life.machine import Machine
from app.life.node_life import NodeLife
from app.life.service_life import Phase, ServiceLifecycle
from app.observability.metrics import Metrics
from app.replicas import folder
from app.settings import Settings
from scheduler.loops import Loop
from storage.clock import SystemClock
from storage.errors import FlushFailed, StoreClosed
from storage.files.vfs import OsVfs
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from tests.support.http import reached


class Recorder(Component):
    """A component that notes its calls."""

    def __init__(
        self,
        name: str,
        calls: list[str],
        *,
        fails: bool = False,
        stop_error: Exception | None = None,
    ) -> None:
        """`stop_error`: both calls that stop it raise it."""
        self._name = name
        self._calls = calls
        self._fails = fails
        self._stop_error = stop_error

    async def start(self) -> None:
        self._note("start")
        if self._fails:
            raise AssertionError("it cannot be started")

    def begin_stop(self) -> None:
        self._note("begin_stop")
        self._raise_stop_error()

    async def stop(self) -> None:
        self._note("stop")
        self._raise_stop_error()

    def _raise_stop_error(self) -> None:
        if self._stop_error is not None:
            raise self._stop_error

    def loops(self) -> Iterator[Loop]:
        yield Loop(f"loop_of_{self._name}", self._run_once, 60_000, "any")

    def gauges(self) -> Iterator[Gauge]:
        yield Gauge("things", "Things of all components", 3)

    async def _run_once(self) -> None:
        self._note("run")

    def _note(self, call: str) -> None:
        self._calls.append(f"{self._name} {call}")


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def listed(monkeypatch) -> list[Component]:
    """Components at the end of the list of the service."""
    more: list[Component] = []
    components_of = lifecycle.components_of
    monkeypatch.setattr(
        lifecycle, "components_of", lambda base, services: [*components_of(base, services), *more]
    )
    return more


async def test_a_component_in_the_list_starts_runs_is_measured_and_stops(tmp_path, listed, calls):
    listed += [Recorder("first", calls), Recorder("second", calls)]
    metrics = Metrics()
    settings = Settings(data_dir=tmp_path)
    service = ServiceLifecycle(settings, metrics, Machine(settings))
    service.start()
    await reached(lambda: service.phase is Phase.READY, "the service is open")
    await reached(lambda: "second run" in calls, "the loops have run")

    assert calls == ["first start", "second start", "first run", "second run"]
    assert metrics.registry.get_sample_value("things") == 6, "values of one name are added up"
    assert (
        metrics.registry.get_sample_value("escrowmq_loop_failures_total", {"loop": "loop_of_first"})
        == 0
    )

    calls.clear()
    await service.close()

    assert calls[:2] == ["second begin_stop", "first begin_stop"]
    assert calls[-2:] == ["second stop", "first stop"]


async def test_where_a_component_cannot_start_those_before_it_stop(tmp_path, listed, calls):
    listed += [
        Recorder("first", calls),
        Recorder("second", calls, fails=True),
        Recorder("third", calls),
    ]
    settings = Settings(data_dir=tmp_path)
    service = ServiceLifecycle(settings, Metrics(), Machine(settings))
    service.start()
    await reached(lambda: service.phase is Phase.FAILED, "the start has failed")

    await service.close()

    assert service.exit_code == exit_codes.BUG
    assert calls == ["first start", "second start", "first begin_stop", "first stop"]


@pytest.mark.parametrize(
    ("error", "exit_code", "events"),
    [
        (OSError(errno.EIO, "of the disk"), exit_codes.STORAGE_FAILED, ["stop_failed"] * 2),
        (ValueError("of a bug"), exit_codes.BUG, ["stop_failed"] * 2),
        (StoreClosed(), 0, ["stopped_without_store"] * 2),
    ],
)
async def test_where_a_component_cannot_be_stopped_all_others_are_and_the_exit_status_says_so(
    tmp_path, listed, calls, error, exit_code, events
):
    listed += [
        Recorder("first", calls),
        Recorder("second", calls, stop_error=error),
        Recorder("third", calls),
    ]
    settings = Settings(data_dir=tmp_path)
    service = ServiceLifecycle(settings, Metrics(), Machine(settings))
    service.start()
    await reached(lambda: service.phase is Phase.READY, "the service is open")
    calls.clear()

    with capture_logs() as logs:
        await service.close()

    assert [call for call in calls if not call.endswith("run")] == [
        *[f"{name} begin_stop" for name in ("third", "second", "first")],
        *[f"{name} stop" for name in ("third", "second", "first")],
    ]
    assert [
        line["event"] for line in logs if line["event"] in ("stop_failed", "stopped_without_store")
    ] == events
    assert logs[-1] == {"event": "stopped", "exit_code": exit_code, "log_level": "info"}
    assert service.exit_code == exit_code
    again = await LocalMessageStore.open(
        settings.store_dir,
        settings.local,
        OsVfs(),
        SystemClock(),
        Identifiers(SystemClock(), SystemRandom()),
    )
    assert again.recovery.was_clean, "the store was closed, behind the component"
    await again.aclose()


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (OSError(errno.EIO, "of the disk"), exit_codes.STORAGE_FAILED),
        (ValueError("of a bug"), exit_codes.BUG),
    ],
)
async def test_a_service_that_stands_down_and_cannot_be_stopped_goes_on_as_no_replica(
    tmp_path, listed, calls, error, exit_code
):
    settings = Settings(data_dir=tmp_path)
    folder.begin_log(tmp_path, 0, settings.local.segment_bytes)
    listed += [Recorder("first", calls, stop_error=error)]
    node = NodeLife(settings, Metrics(), Machine(settings))
    ended = asyncio.Event()
    node.on_fatal = ended.set
    node.start()
    service = node._life
    assert isinstance(service, ServiceLifecycle)
    await reached(lambda: service.phase is Phase.READY, "the service is open")

    service._fail(exit_codes.DEPOSED, AssertionError("there is a later service"))
    await asyncio.wait_for(ended.wait(), 60)
    await node.close()

    assert node.exit_code == exit_code
    assert node.role == "primary"
    assert not folder.is_replica(tmp_path)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (OSError(errno.EIO, "of the disk"), exit_codes.STORAGE_FAILED),
        (FlushFailed(), exit_codes.STORAGE_FAILED),
        (ValueError("of a bug"), exit_codes.BUG),
    ],
)
async def test_the_exit_status_says_whether_the_disk_or_a_mistake_has_ended_the_store(
    tmp_path, error, exit_code
):
    settings = Settings(data_dir=tmp_path)
    service = ServiceLifecycle(settings, Metrics(), Machine(settings))
    service.start()
    await reached(lambda: service.phase is Phase.READY, "the service is open")

    service._store._engine.fail(error)
    await service.close()

    assert service.exit_code == exit_code
