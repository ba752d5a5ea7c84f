"""The life cycle starts, runs, measures and stops the components of its list, whatever they are."""

from collections.abc import Iterator

import pytest

from app import exit_codes, lifecycle
from app.component import Component, Gauge
from app.lifecycle import Phase, ServiceLifecycle
from app.machine import Machine
from app.observability import Metrics
from app.settings import Settings
from scheduler.loops import Loop
from tests.support.http import reached


class Recorder(Component):
    """A component that notes its calls."""

    def __init__(self, name: str, calls: list[str], *, fails: bool = False) -> None:
        self._name = name
        self._calls = calls
        self._fails = fails

    async def start(self) -> None:
        self._note("start")
        if self._fails:
            raise AssertionError("it cannot be started")

    def begin_stop(self) -> None:
        self._note("begin_stop")

    async def stop(self) -> None:
        self._note("stop")

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
