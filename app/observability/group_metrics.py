"""Metrics of single consumer groups, written for a scrape.

Clients make groups, so the number of groups with metrics is limited: those that were created first
have them, and a group that is created later takes no metrics from another one. Figures are read,
and lines are written, in turns of bounded length.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from app.registry.consumer_groups import ConsumerGroups
from delivery.group_figures import GroupFigures
from delivery.groups import GroupRules
from delivery.leases.given_up import Cause
from delivery.service import Delivery
from delivery.turns import Turns
from storage.clock import Clock


class _Family(NamedTuple):
    """A metric with the label `group`, and its value for a group."""

    name: str
    help: str
    kind: Literal["gauge", "counter"]
    value: Callable[[GroupFigures], float]


_FAMILIES = (
    _Family(
        "escrowmq_group_messages_ready",
        "Messages that a receive of the group may return, before any filter",
        "gauge",
        lambda one: one.ready,
    ),
    _Family(
        "escrowmq_group_messages_leased",
        "Messages leased to consumers of the group",
        "gauge",
        lambda one: one.leased,
    ),
    _Family(
        "escrowmq_group_messages_waiting",
        "Messages of the group that wait for a retry or for their ordering key",
        "gauge",
        lambda one: one.waiting,
    ),
    _Family(
        "escrowmq_group_keys_held",
        "Ordering keys of the group that are leased or wait for a retry",
        "gauge",
        lambda one: one.held_keys,
    ),
    _Family(
        "escrowmq_group_dead_letters",
        "Dead letters of the group that are kept now",
        "gauge",
        lambda one: one.dead_letters,
    ),
    _Family(
        "escrowmq_group_messages_discarded_total",
        "Messages given up by the group and dropped, since it keeps no dead letters",
        "counter",
        lambda one: one.discarded,
    ),
    _Family(
        "escrowmq_group_messages_rejected_total",
        "Messages rejected by consumers of the group, each attempt that counts",
        "counter",
        lambda one: one.rejected,
    ),
    _Family(
        "escrowmq_group_leases_expired_total",
        "Leases of the group that ended without a settlement",
        "counter",
        lambda one: one.leases_expired,
    ),
)
_AGE = "escrowmq_group_oldest_ready_age_seconds"
_DEAD_LETTERED = "escrowmq_group_messages_dead_lettered_total"


class GroupMetrics:
    """Writes the metrics of groups. Event loop only."""

    def __init__(
        self, groups: ConsumerGroups, delivery: Delivery, clock: Clock, *, most_groups: int
    ) -> None:
        self._groups = groups
        self._delivery = delivery
        self._clock = clock
        self._most_groups = most_groups

    async def text(self) -> str:
        """The metrics now, in the text format of Prometheus."""
        group_count = len(self._groups)  # before others have their turn, and may delete groups
        figures = await self._delivery.figures(self._measured())
        lines = _head(
            "escrowmq_groups_without_metrics", "Consumer groups beyond the limit", "gauge"
        )
        lines.append(f"escrowmq_groups_without_metrics {group_count - len(figures)}\n")
        turns = Turns()
        for family in _FAMILIES:
            await turns.take(len(figures))
            lines += _head(family.name, family.help, family.kind)
            lines += _samples(family, figures)
        await turns.take(len(figures))
        lines += _head(_AGE, "Age of the oldest message that a receive may return", "gauge")
        lines += self._ages(figures)
        await turns.take(len(figures))
        lines += _head(_DEAD_LETTERED, "Messages that became dead letters", "counter")
        # A counter exists from the start, at 0: an increase from nothing is none to Prometheus.
        lines += [
            f'{_DEAD_LETTERED}{{group="{one.group}",reason="{cause.value}"}} '
            f"{one.dead_lettered.get(cause, 0)}\n"
            for one in figures
            for cause in Cause
        ]
        return "".join(lines)

    async def read_ages(self) -> int:
        """Read since when the oldest ready messages of the groups have been stored; the number of
        messages that were read.
        """
        return await self._delivery.oldest_ready.run_once(self._measured())

    def _measured(self) -> list[tuple[str, GroupRules]]:
        groups = self._groups.created_first(self._most_groups)
        return [(one.name, one.rules) for one in groups]

    def _ages(self, figures: Sequence[GroupFigures]) -> Iterator[str]:
        """Zero for a group that has no ready message; none where the age is not known yet."""
        now_ms = self._clock.wall_ms()
        for one in figures:
            stored_at_ms = self._delivery.oldest_ready.stored_at_ms(one.group)
            if not one.ready or stored_at_ms is not None:
                age_ms = max(0, now_ms - stored_at_ms) if one.ready and stored_at_ms else 0
                yield f'{_AGE}{{group="{one.group}"}} {age_ms / 1000}\n'


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}\n", f"# TYPE {name} {kind}\n"]


def _samples(family: _Family, figures: Sequence[GroupFigures]) -> list[str]:
    # Names of groups have no character that would have to be escaped.
    return [f'{family.name}{{group="{one.group}"}} {family.value(one)}\n' for one in figures]
