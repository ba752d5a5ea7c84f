"""The rates of the last minute as a component: its loop."""

from collections.abc import Iterator

from app.components.component import Component
from app.observability.rates import INTERVAL_MS, RateWatch
from scheduler.loops import Loop


class RatesComponent(Component):
    """Reads the counters now and then."""

    def __init__(self, watch: RateWatch) -> None:
        self._watch = watch

    def loops(self) -> Iterator[Loop]:
        yield Loop("rates", self._watch.run_once, INTERVAL_MS, "metrics")
