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

from examples.flights.chaos import Fate
from examples.flights.checker import FENCE_AFTER_MS
from examples.flights.data import Flight
from examples.flights.ledger import Fenced, Ledger
from examples.flights.service import Service

_STALL_SECONDS = FENCE_AFTER_MS / 1000 + 2


def produce(
    name: str, flights: Sequence[Flight], fates: Mapping[int, Fate], url: str, ledger_path: Path
) -> None:
    """What runs in the process.

    `name` is used by no other producer, before or after, so its transaction ids are new.
    """
    # Ctrl-C is for the demo, which ends its producers itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    service, ledger = Service(url), Ledger(ledger_path)
    for flight in flights:
        _handle(flight, name, service, ledger, fates.get(flight.number))
    service.close()
    ledger.close()


def _handle(flight: Flight, name: str, service: Service, ledger: Ledger, fate: Fate | None) -> None:
    """Begin, write, decide.

    A transaction that was fenced is left to the checker, and the flight gets another.
    """
    for attempt in count(1):
        transaction_id = f"flight-{flight.number}.{name}.{attempt}"
        message_id = service.begin(transaction_id, flight)
        if fate is Fate.KILLED_BEFORE_WRITE:
            _die()
        if fate is Fate.STALLED_BEFORE_WRITE and attempt == 1:
            time.sleep(_STALL_SECONDS)
        try:
            outcome = ledger.write(flight, transaction_id, message_id)
        except Fenced:
            continue
        if fate is Fate.KILLED_AFTER_WRITE:
            _die()
        service.decide(transaction_id, outcome)
        return


def _die() -> None:
    """kill -9, at exactly this point: nothing is closed, flushed or told to anybody."""
    os.kill(os.getpid(), signal.SIGKILL)
