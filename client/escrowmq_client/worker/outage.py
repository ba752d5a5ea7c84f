"""Times in which a worker cannot receive, in the log: one line at the beginning, one at the end."""

import time

from escrowmq_client.errors import EscrowMQError, Overloaded
from escrowmq_client.worker.words import is_passing, log

_TOO_MANY = 429


class Outage:
    """The outage of the service for the receives of one worker, if there is one now."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._since_s: float | None = None

    def failed(self, error: EscrowMQError) -> None:
        """Note a try that failed. A limit of the service is no outage, nor is a refusal."""
        is_limit = isinstance(error, Overloaded) and error.status == _TOO_MANY
        if self._since_s is not None or is_limit or not is_passing(error):
            return
        self._since_s = time.monotonic()
        log.warning(
            "the service does not answer receives of group %s, and is asked again: %s",
            self._group,
            error,
        )

    def answered(self) -> None:
        """Note a try that was answered."""
        if self._since_s is None:
            return
        away_s = time.monotonic() - self._since_s
        self._since_s = None
        log.warning(
            "the service answers receives of group %s again, after %.1f s", self._group, away_s
        )
