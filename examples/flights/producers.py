"""Keeps the producers at work: as many as there are shares of the flights, and a new one for each
that is killed.
"""

import multiprocessing
import signal
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from examples.flights import signals
from examples.flights.chaos import Fate
from examples.flights.data import Flight
from examples.flights.ledger import Ledger
from examples.flights.producer import produce

# New processes are copies of one that has done nothing but import the producer: they start at once,
# and without our threads.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["examples.flights.producer"])


class ProducerFailed(Exception):
    """A producer ended by itself, and not because it was done."""


class Producers:
    """Each has a share of the flights, one behind another, and works through it in order."""

    def __init__(
        self, flights: list[Flight], count: int, fates: dict[int, Fate], url: str, ledger_path: Path
    ) -> None:
        self.kill_count = 0
        self._started_count = 0
        self._fates = dict(fates)
        self._url = url
        self._ledger_path = ledger_path
        self._ledger = Ledger(ledger_path)
        size = -(-len(flights) // count)
        self._shares = [flights[first : first + size] for first in range(0, len(flights), size)]
        self._running: dict[BaseProcess, list[Flight]] = {}

    def start(self) -> None:
        for share in self._shares:
            self._start(share)

    def look_after(self, *, wait_seconds: float) -> bool:
        """Replace those that were killed; waits for news at most so long.

        False: all are done. Raises ProducerFailed.
        """
        wait([process.sentinel for process in self._running], timeout=wait_seconds)
        for process in [process for process in self._running if not process.is_alive()]:
            share = self._running.pop(process)
            if process.exitcode == -signal.SIGKILL:
                self.kill_count += 1
                self._replace(share)
            elif process.exitcode != 0:
                raise ProducerFailed(
                    f"{process.name} ended with status {process.exitcode}; its last words are above"
                )
        return bool(self._running)

    def end(self) -> None:
        """Kill those that still run."""
        for process in self._running:
            process.kill()
            process.join()
        self._ledger.close()

    def _start(self, share: list[Flight]) -> None:
        self._started_count += 1
        name = f"p{self._started_count}"
        fates = {
            flight.number: self._fates[flight.number]
            for flight in share
            if flight.number in self._fates
        }
        arguments = (name, share, fates, self._url, self._ledger_path)
        process = _processes.Process(
            target=produce, args=arguments, name=f"producer {name}", daemon=True
        )
        with signals.deferred():
            process.start()
            self._running[process] = share

    def _replace(self, share: list[Flight]) -> None:
        # The dead one met the first deadly fate of its share; the same flight must not kill the
        # next one too.
        self._fates.pop(next(flight.number for flight in share if self._is_deadly(flight)))
        # What the ledger has is no longer a producer's business: the checker says what became of
        # it.
        last = self._ledger.last_written(share[0].number, share[-1].number)
        left = [flight for flight in share if last is None or flight.number > last]
        if left:
            self._start(left)

    def _is_deadly(self, flight: Flight) -> bool:
        fate = self._fates.get(flight.number)
        return fate is not None and fate.is_deadly
