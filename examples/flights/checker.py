"""The checker: asks the service which transactions it wonders about, and answers from the ledger.

It runs beside the producers and shares nothing with them but the database, so it answers for the
dead ones as well.
"""

import threading
from collections import Counter
from pathlib import Path

from escrowmq_client import AskedCheck
from escrowmq_client import Checker as ClientChecker
from escrowmq_client.check_answers import Decided
from examples.flights.ledger import Ledger, Outcome
from examples.flights.service import CHECK_WAIT_MS, PRODUCER_GROUP, connected

# How old a transaction must be before one that the ledger has never seen is given up. In a real
# system this is longer than any local transaction takes; being wrong about it costs a slow producer
# a second try, never a wrong message.
FENCE_AFTER_MS = 5_000


def judge(ledger: Ledger, transaction_id: str, age_ms: int) -> Outcome | None:
    """What became of the transaction; None for "it may still be under way".

    Never "rollback" without a marker that says so.
    """
    outcome = ledger.outcome(transaction_id)
    if outcome is None and age_ms >= FENCE_AFTER_MS:
        outcome = ledger.fence(transaction_id)
    return outcome


class CheckerFailed(Exception):
    """The checker has ended with an error."""


class Checker(threading.Thread):
    """`answers` counts what was answered: commit, rollback, unknown, and refused (the producer
    decided in the meantime).
    """

    def __init__(self, url: str, ledger_path: Path) -> None:
        super().__init__(name="checker", daemon=True)
        self.answers: Counter[str] = Counter()
        self._error: Exception | None = None
        self._url = url
        self._ledger_path = ledger_path
        self._is_stopping = threading.Event()

    def run(self) -> None:
        try:
            ledger = Ledger(self._ledger_path)

            def answer(check: AskedCheck) -> Decided:
                outcome = judge(ledger, check.transaction_id, check.age_ms)
                return "unknown" if outcome is None else outcome.value

            with connected(self._url) as client:
                checker = ClientChecker(client, PRODUCER_GROUP, answer, wait_ms=CHECK_WAIT_MS)
                self.answers = checker.counts
                while not self._is_stopping.is_set():
                    checker.run_once()
        except Exception as error:  # noqa: BLE001
            # It is raised in the thread that looks after this one.
            self._error = error

    def raise_if_failed(self) -> None:
        if self._error is not None:
            raise CheckerFailed(f"the checker ended: {self._error!r}") from self._error

    def stop(self) -> None:
        """Returns when the last poll has ended, or at once where the service does not answer any
        more.
        """
        self._is_stopping.set()
        self.join(timeout=3)
