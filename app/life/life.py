"""The part that answers behind an address, as the application and the process see it: a service, or
a replica in its place.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from app.problems import invalid_field
from app.services import Reading, Services
from app.word_sets import Role

_ROLES: dict[str, Role] = {"primary": "primary", "replica": "replica"}


class Life(Protocol):
    """A service or a replica, from its settings to its end. Event loop only."""

    exit_code: int
    on_fatal: Callable[[], None]  # the process should end, with `exit_code`
    on_loaded: Callable[[], None]  # state is loaded, requests are not served yet

    @property
    def role(self) -> Role: ...

    def start(self) -> None:
        """Begin in the background: probes are answered meanwhile."""

    def begin_stop(self) -> None:
        """Take nothing new, and answer every long poll now."""

    async def close(self) -> None:
        """Finish what was taken, release everything. Idempotent."""

    def get_services(self) -> Services:
        """Raises MessagingError where it serves no requests, now or ever."""

    def get_reading(self) -> Reading:
        """Return the part that answers reads of messages. Raises MessagingError."""

    def get_readiness(self) -> Mapping[str, str]:
        """Readiness checks, each "ok", or what is not and blocks few requests. Raises Refusal."""

    def refuse_role(self, role: Role) -> None:
        """Raises Refusal where this is not its role."""


def role_of(given: str) -> Role:
    """Raises Refusal."""
    role = _ROLES.get(given)
    if role is None:
        raise invalid_field("/query/role", "not_allowed", "a role is one of primary, replica")
    return role
