"""One store, on which brokers and services of EscrowMQ take turns."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace, TracebackType

from tests.rocketmq.broker import ESCROWMQ, Broker
from tests.rocketmq.driver import Driver
from tests.rocketmq.service import Service, service_on
from tests.support.server import Server


class Stage:
    """The store is `data/store`. Use as a context manager: nothing is left running at its end."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver, self.folder, self.data = driver, folder, folder / "data"
        self._running = ExitStack()
        self._brokers = 0

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._running.close()

    def broker(self, **settings: object) -> Broker:
        """Start a broker; stop or kill it before another turn begins."""
        return self._running.enter_context(self.new_broker(self.data / "store", **settings))

    def new_broker(self, store: Path, **settings: object) -> Broker:
        """A broker on any store, that is not started: its port is reserved."""
        self._brokers += 1
        return Broker(self.driver, self.folder / f"broker-{self._brokers}", store, **settings)

    def service(self, **environment: str) -> Service:
        """Start EscrowMQ; stop or kill it before another turn begins."""
        server = Server(self.data, dev=False, environment={**ESCROWMQ, **environment})
        self._running.enter_context(server)
        return self._running.enter_context(service_on(server))

    def broker_turn(
        self,
        act: Callable[[Broker, SimpleNamespace], None],
        story: SimpleNamespace,
        *,
        killed: bool = False,
        **settings: object,
    ) -> None:
        """A broker serves the store while this runs; its problems are added to the story's."""
        broker = self.broker(**settings)
        act(broker, story)
        story.problems += broker.problems()
        if killed:
            broker.kill()
        else:
            broker.stop()

    def service_turn(
        self, act: Callable[[Service, SimpleNamespace], None], story: SimpleNamespace
    ) -> None:
        """EscrowMQ serves the store while this runs."""
        service = self.service()
        act(service, story)
        service.stop()
