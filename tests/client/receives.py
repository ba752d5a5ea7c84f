"""Receives of a worker, as hooks of its client see them."""

from contextlib import AbstractContextManager, nullcontext
from queue import Queue

from escrowmq_client import Call, Client

PATIENCE_S = 60


class Receives:
    """Hooks that note the receives of a worker."""

    def __init__(self) -> None:
        self.begun: Queue[str] = Queue()

    def on_call(self, call: Call[object], headers: dict[str, str]) -> AbstractContextManager[None]:
        if call.operation == "receiveMessages":
            self.begun.put(call.operation)
        return nullcontext()

    def on_message(self, group: str, message: object) -> AbstractContextManager[None]:
        return nullcontext()


def await_receive(client: Client, receives: Receives) -> None:
    """Return when the service has the receive of the worker."""
    receives.begun.get(timeout=PATIENCE_S)
    client.get_version()
