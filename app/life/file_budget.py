"""How many files the process may open, and what they are for: the store's own first, connections
get what is left.

A server that accepts until `accept` fails has no descriptor left for the next file of its log. So
the limit is raised to the hard one before anything is opened, and every use of descriptors has a
bound; where they do not fit, the start is refused.
"""

from dataclasses import replace
from typing import NamedTuple

from app.http.connections import RESERVED
from app.replicas.listener import MOST_STRANGERS
from app.settings import MOST_CONNECTIONS, PREFIX, ConfigurationError, Settings, waiting_below
from app.webhooks.transport import MOST_CONNECTIONS as MOST_WEBHOOKS
from app.webhooks.transport import most_kept

_LEAST_CONNECTIONS = 64  # a service with fewer is of no use
_MOST_QUEUE_FILES = 512


class Budget(NamedTuple):
    """Descriptors by their use; what is left of the limit is for connections."""

    limit: int
    needs: dict[str, int]

    @property
    def needed(self) -> int:
        return sum(self.needs.values())

    @property
    def left(self) -> int:
        return self.limit - self.needed

    def __str__(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in self.needs.items())


def plan(settings: Settings, limit: int) -> Budget:
    """Plan the descriptors that the service needs beside its connections. Pure."""
    local, replica = settings.local, settings.replica
    webhooks = _webhooks(settings, limit)
    held = local.most_held_segments
    return Budget(
        limit,
        {
            # standard streams, the loop, libraries, folders that are synced, files that are being
            # made
            "process": 64,
            # a mapping keeps a descriptor of its own
            "segments": max(local.max_open_segments, held) + held + 1,
            "queue files": local.max_open_queue_files or min(_MOST_QUEUE_FILES, limit // 4),
            "index files": local.max_open_index_files,
            "timer files": 32,  # they are merged: each is larger than all after it
            "registry": 8,
            "webhooks": webhooks + most_kept(webhooks),
            "reports": 16,
            # twice: a connection that is replaced is there until it is closed
            "replicas": 2 * replica.max_replicas + len(replica.rocketmq_peers) + MOST_STRANGERS
            if replica.ha_host
            else 0,
            "probes and operators": RESERVED,
            "margin": 64,
        },
    )


def _webhooks(settings: Settings, limit: int) -> int:
    return settings.webhook.max_connections or min(MOST_WEBHOOKS, limit // 16)


def fit(settings: Settings, limit: int) -> Settings:
    """The settings with every number of files and connections made explicit.

    Pure. Raises ConfigurationError.
    """
    budget = plan(settings, limit)
    http = settings.http
    wanted = http.max_connections or _LEAST_CONNECTIONS
    if budget.left < wanted:
        raise ConfigurationError(
            f"{limit} files may be open at once (the hard limit), {budget.needed + wanted} are "
            "needed: "
            f"connections {wanted}, {budget}. Raise the limit (systemd LimitNOFILE=, docker "
            "--ulimit nofile=, ulimit -Hn)"
            + (f" or lower {PREFIX}HTTP__MAX_CONNECTIONS" if http.max_connections else "")
        )
    connections = http.max_connections or min(MOST_CONNECTIONS, budget.left)
    waiting = http.max_waiting or waiting_below(connections)
    if waiting >= connections and http.max_waiting:
        raise ConfigurationError(
            f"{PREFIX}HTTP__MAX_WAITING is {waiting} and must be below the number of connections, "
            f"which is {connections}"
        )
    return settings.model_copy(
        update={
            "http": replace(http, max_connections=connections, max_waiting=waiting),
            "local": replace(settings.local, max_open_queue_files=budget.needs["queue files"]),
            "webhook": replace(settings.webhook, max_connections=_webhooks(settings, limit)),
        }
    )
