"""Times in which the service is away, in the log: one line at the beginning, one at the end."""

import logging
import time

from escrowmq_client.errors import EscrowMQError, NotPrimary, Overloaded
from escrowmq_client.worker.words import is_passing, log

_TOO_MANY = 429


class Outage:
    """The outage of the service for the receives of one worker or checker, if there is one now."""

    def __init__(
        self, group: str, calls: str = "receives of group", logger: logging.Logger = log
    ) -> None:
        self._calls = f"{calls} {group}"
        self._log = logger
        self._since_s: float | None = None

    def failed(self, error: EscrowMQError) -> None:
        """Note a try that failed. A limit of the service is no outage, nor is a refusal, nor a
        replica that knows where the service is.
        """
        is_limit = isinstance(error, Overloaded) and error.status == _TOO_MANY
        is_led = isinstance(error, NotPrimary) and bool(error.primary)
        if self._since_s is not None or is_limit or is_led or not is_passing(error):
            return
        self._since_s = time.monotonic()
        self._log.warning(
            "the service does not answer %s, and is asked again: %s", self._calls, error
        )

    def answered(self) -> None:
        """Note a try that was answered."""
        if self._since_s is None:
            return
        away_s = time.monotonic() - self._since_s
        self._since_s = None
        self._log.warning("the service answers %s again, after %.1f s", self._calls, away_s)
