"""Reads a queue as records, from an offset to its end.

    python examples/read_records.py http://127.0.0.1:8080 orders 0

The layout is in docs/formats.md, and its reader in client/escrowmq_client/records.py. The
environment has the key in ESCROWMQ_API_KEY, where the service wants one.
"""

import argparse
import sys
from collections.abc import Iterator

from escrowmq_client import Client, Message


def read_queue(client: Client, topic: str, queue_id: int, offset: int = 0) -> Iterator[Message]:
    """The messages from an offset to the end of the queue."""
    while True:
        page = client.pull(topic, queue_id, offset=offset, max_messages=1_000, raw=True)
        yield from page.messages
        offset = page.next_offset
        if offset >= page.max_offset:
            return


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Read a queue as records, from offset 0.")
    arguments.add_argument("url", help="URL of the service")
    arguments.add_argument("topic")
    arguments.add_argument("queue_id", type=int)
    given = arguments.parse_args()
    with Client(given.url) as client:
        for one in read_queue(client, given.topic, given.queue_id):
            sys.stdout.write(
                f"{one.queue_offset} {one.message_id} {one.key or '-'} {one.tag or '-'} "
                f"{len(one.body)} bytes\n"
            )
