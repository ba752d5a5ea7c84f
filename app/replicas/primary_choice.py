"""Which primary a replica follows: that of its settings, or else the one that name servers know."""

from collections.abc import Callable
from typing import NamedTuple

from app.replicas.options import ReplicaOptions


class KnownPrimary(NamedTuple):
    """A primary as name servers know it: host:port for its replicas, and the epoch of its log."""

    address: str
    epoch: int


class NoPrimary(Exception):
    """No primary to follow is known at present."""


class PrimaryChoice:
    """Never goes back to a primary of an earlier epoch than the one that was followed last: that
    has taken its place.
    """

    def __init__(
        self, options: ReplicaOptions, find_primary: Callable[[], KnownPrimary | None]
    ) -> None:
        """`find_primary` is asked only where the settings name none."""
        self._options = options
        self._find = find_primary
        self._chosen_epoch = self._epoch = 0  # of the one chosen last, and followed last
        self.address = options.primary  # chosen last; empty: none yet

    @property
    def is_by_name(self) -> bool:
        """Whether the address is from name servers."""
        return not self._options.primary

    def choose(self, least_epoch: int) -> str:
        """host:port to connect to. `least_epoch`: that of its own log, or of its promise.

        Raises NoPrimary.
        """
        if not self.is_by_name:
            return self.address
        found = self._find()
        if found is None:
            raise NoPrimary(
                "no name server knows a primary of ESCROWMQ_NAMES__GROUP that serves replicas"
            )
        earliest = max(least_epoch, self._epoch)
        if found.epoch < earliest:
            raise NoPrimary(
                f"the primary that is known, {found.address}, is in epoch {found.epoch} of the "
                f"log, and this machine follows none before epoch {earliest}"
            )
        try:
            self._options.check_primary(found.address)
        except ValueError as error:
            raise NoPrimary(str(error)) from None
        self.address, self._chosen_epoch = found.address, found.epoch
        return self.address

    def note_followed(self) -> None:
        """Note that the chosen primary has proved that it knows the secret."""
        self._epoch = self._chosen_epoch

    def has_moved(self, least_epoch: int) -> bool:
        """Whether a primary of a later epoch is known, at another address. `least_epoch`: as for
        `choose`.
        """
        if not self.is_by_name:
            return False
        found = self._find()
        return (
            found is not None
            and found.epoch > self._epoch
            and found.epoch >= least_epoch
            and found.address != self.address
        )
