"""The checker: asks the service which transactions it wonders about, and answers from the ledger.

It runs beside the producers and shares nothing with them but the database, so it answers for the
dead ones as well.
"""

import threading
from collections import Counter
from pathlib import Path

from examples.flights.ledger import Ledger, Outcome
from examples.flights.service import Service

# How old a transaction must be before one that the ledger has never seen is given up. In a real
# system this is longer than any local transaction takes; being wrong about it costs a slow producer
# a second try, never a wrong message.
FENCE_AFTER_MS = 5_000

UNKNOWN = "unknown"


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
            service, ledger = Service(self._url), Ledger(self._ledger_path)
            while not self._is_stopping.is_set():
                self._run_once(service, ledger)
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

    def _run_once(self, service: Service, ledger: Ledger) -> None:
        answers = [
            {
                "check_id": check["check_id"],
                "decision": judge(ledger, check["transaction_id"], check["age_ms"]) or UNKNOWN,
            }
            for check in service.receive_checks()
        ]
        if not answers:
            return
        for answer, result in zip(answers, service.answer_checks(answers), strict=True):
            self.answers[answer["decision"] if result["status"] == 200 else "refused"] += 1
