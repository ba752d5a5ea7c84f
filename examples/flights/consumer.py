"""The consumer: pulls the whole topic, queue by queue, and remembers what it was given."""

from collections.abc import Iterator
from typing import NamedTuple

from examples.flights.service import QUEUES, Service


class Delivered(NamedTuple):
    """One message as it came."""

    number: int  # the flight that it says it is about
    message_id: str
    payload: str


def pull_everything(service: Service) -> Iterator[Delivered]:
    for queue_id in range(QUEUES):
        for message in service.messages(queue_id):
            yield Delivered(int(message["key"]), message["message_id"], message["payload"])
