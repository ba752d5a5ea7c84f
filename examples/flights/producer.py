"""A producer: a process that handles one flight after the other, until it is done or dead.

One flight at a time keeps this file in the order in which things happen, and a dozen such processes
keep the service busy. What bounds the whole is the processor: on two cores a flight (two requests,
each synced to disk before its answer) costs the service about 1.0 ms and a producer about 1.3 ms,
so that some 700 flights a second are what the two can do together.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from escrowmq_client import Client, FencedError
from examples.flights.chaos import Fate
from examples.flights.checker import FENCE_AFTER_MS
from examples.flights.data import Flight
from examples.flights.ledger import Ledger, Outcome
from examples.flights.service import CHECK, PRODUCER_GROUP, TOPIC, connected

_STALL_SECONDS = FENCE_AFTER_MS / 1000 + 2


def produce(
    name: str, flights: Sequence[Flight], fates: Mapping[int, Fate], url: str, ledger_path: Path
) -> None:
    """What runs in the process.

    `name` is used by no other producer, before or after, so its transaction ids are new.
    """
    # Ctrl-C is for the demo, which ends its producers itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ledger = Ledger(ledger_path)
    with connected(url) as client:
        for flight in flights:
            _handle(flight, name, client, ledger, fates.get(flight.number))
    ledger.close()


def _handle(flight: Flight, name: str, client: Client, ledger: Ledger, fate: Fate | None) -> None:
    """Begin, write, decide.

    A transaction that was fenced is left to the checker, and the flight gets another.
    """
    for attempt in count(1):
        try:
            _try(flight, f"flight-{flight.number}.{name}.{attempt}", client, ledger, fate)
        except FencedError:
            if fate is Fate.STALLED_BEFORE_WRITE:
                fate = None  # it has met it
        else:
            return


def _try(
    flight: Flight, transaction_id: str, client: Client, ledger: Ledger, fate: Fate | None
) -> None:
    """One transaction. The marker is the ledger's own, so it is begun before the write, and
    decided when the block is left.
    """
    number = str(flight.number)
    with client.transaction(
        PRODUCER_GROUP, id=transaction_id, business_key=number, check=CHECK
    ) as tx:
        tx.add(TOPIC, json=flight.body, key=number, tag=flight.origin)
        tx.begin()
        if fate is Fate.KILLED_BEFORE_WRITE:
            _die()
        if fate is Fate.STALLED_BEFORE_WRITE:
            time.sleep(_STALL_SECONDS)
        outcome = ledger.write(flight, transaction_id, tx.messages[0].message_id)
        if fate is Fate.KILLED_AFTER_WRITE:
            _die()
        if outcome is Outcome.ROLLBACK:
            tx.rollback()


def _die() -> None:
    """kill -9, at exactly this point: nothing is closed, flushed or told to anybody."""
    os.kill(os.getpid(), signal.SIGKILL)
