"""Signals that interrupt a program where it is least convenient, in this process."""

import signal
import threading

import pytest

from escrowmq_client import LeasedMessage, Worker
from escrowmq_client.worker.signals import stop_at_signals

PATIENCE_S = 60
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("once", [True, False])
def test_a_stop_may_wait_for_a_lock_that_the_interrupted_thread_holds(once):
    lock, stopped = threading.Lock(), threading.Event()

    def stop() -> None:
        if lock.acquire(timeout=PATIENCE_S):
            stopped.set()

    with stop_at_signals(stop, once=once):
        with lock:
            signal.raise_signal(signal.SIGTERM)
            assert not stopped.is_set()
        assert stopped.wait(PATIENCE_S)


@pytest.mark.parametrize("once", [True, False])
def test_handlers_of_signals_are_those_from_before_at_the_end_or_from_the_first_one_on(once):
    before = [signal.getsignal(one) for one in SIGNALS]
    with stop_at_signals(lambda: None, once=once):
        assert all(signal.getsignal(one) not in before for one in SIGNALS)
        signal.raise_signal(signal.SIGTERM)
        assert ([signal.getsignal(one) for one in SIGNALS] == before) is once

    assert [signal.getsignal(one) for one in SIGNALS] == before


class Interrupted(Worker):
    """A worker that gets a signal just before it waits, when its handlers are all busy."""

    is_sent = False

    def _wait(self, until_ms: float) -> None:
        is_here = threading.current_thread() is threading.main_thread()
        if is_here and not self.is_sent and not self._book.is_empty:
            self.is_sent = True
            signal.raise_signal(signal.SIGTERM)
        super()._wait(until_ms)


def test_a_worker_that_gets_a_signal_just_before_it_waits_stops_at_once(client, topic, group):
    client.send(topic, json=1)
    may_end = threading.Event()

    def handle(message: LeasedMessage) -> None:
        may_end.wait(PATIENCE_S)

    worker = Interrupted(client, group, handle, concurrency=1, lease_ms=60_000, shutdown_ms=0)
    worker.run()
    may_end.set()

    assert (worker.stats.nacked, worker.stats.extended) == (1, 0)
