"""The consumer: pulls the whole topic, queue by queue, and remembers what it was given."""

from collections.abc import Iterator
from typing import NamedTuple

from escrowmq_client import Client
from examples.flights.service import QUEUES, TOPIC

_PAGE_MESSAGES = 1_000
_PAGE_BYTES = 16 << 20


class Delivered(NamedTuple):
    """One message as it came."""

    number: int  # the flight that it says it is about
    message_id: str
    payload: str


def pull_everything(client: Client) -> Iterator[Delivered]:
    for queue_id in range(QUEUES):
        offset, end = 0, 1
        while offset < end:
            page = client.pull_messages(
                TOPIC, queue_id, offset=offset, max_messages=_PAGE_MESSAGES, max_bytes=_PAGE_BYTES
            )
            for message in page.messages:
                yield Delivered(int(str(message.key)), message.message_id, str(message.payload))
            offset, end = page.next_offset, page.max_offset
