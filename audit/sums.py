"""Sums over the rows of all transactions: plain values, counted by an engine for each set of facts.
Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from audit.decode.hashes import hash_of
from audit.errors import NoSuchGroup
from audit.verdicts import DAMAGED, FINDINGS, FLAGS, VERDICTS, Fact, verdict

_NONE = "none"  # where not exactly one verdict fits


class Place(IntEnum):
    """Where a row of `outcomes.by_transaction` counts."""

    ASKED = 0  # a transaction that the question is about
    OTHER = 1  # another one
    NO_TRANSACTION = 2
    FILLER = 3
    DAMAGED = 4


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Bytes and records are those of the whole log."""

    begun: int
    counts: dict[str, int]  # each of FINDINGS
    facts: tuple[Fact, ...]  # those that were met
    by_group: list[tuple[str | None, dict[str, int]]]  # the largest groups, by name
    groups_omitted: int
    group_hashes: frozenset[int]  # of all transactions, whether they were asked about or not
    bytes: int
    records: int
    damaged_bytes: int
    has_plain_ops: bool  # ops that belong to no transaction yet
    unclear: int
    first_half_number: int | None

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, Any]],
        group_names: Mapping[int, str],
        *,
        groups_omitted: int = 0,
    ) -> "Sums":
        """Rows: place, group, facts; transactions, bytes, records (or stretches),
        first_half_number.

        `group_names`: the groups that are listed.
        """
        counts: Counter[str] = Counter()
        groups: dict[str | None, Counter[str]] = {}
        asked = [row for row in rows if row["place"] == Place.ASKED]
        for row in asked:
            facts, number = Fact(row["facts"]), row["transactions"]
            counts[verdict(facts) or _NONE] += number
            counts.update({name: number for name, fact in FLAGS.items() if fact in facts})
            if row["group"] is None or row["group"] in group_names:
                groups.setdefault(group_names.get(row["group"]), Counter())[
                    verdict(facts) or _NONE
                ] += number
        damaged = [row for row in rows if row["place"] == Place.DAMAGED]
        counts[DAMAGED] = _sum(damaged, "records")
        of_none = [row for row in rows if row["place"] == Place.NO_TRANSACTION]
        numbers = [row["first_half_number"] for row in rows if row["first_half_number"] is not None]
        return cls(
            begun=_sum(asked, "transactions"),
            counts={name: counts[name] for name in FINDINGS},
            facts=tuple({Fact(row["facts"]) for row in asked}),
            by_group=[
                (name, {each: found[each] for each in (*VERDICTS, _NONE) if found[each]})
                for name, found in sorted(groups.items(), key=lambda item: item[0] or "")
            ],
            groups_omitted=groups_omitted,
            group_hashes=frozenset(row["group"] for row in rows if row["group"] is not None),
            bytes=_sum(rows, "bytes"),
            records=sum(
                row["records"]
                for row in rows
                if row["place"] in (Place.ASKED, Place.OTHER, Place.NO_TRANSACTION)
            ),
            damaged_bytes=_sum(damaged, "bytes"),
            has_plain_ops=any(Fact.PLAIN_OP in Fact(row["facts"]) for row in of_none),
            unclear=sum(row["transactions"] for row in asked if Fact.UNCLEAR in Fact(row["facts"])),
            first_half_number=min(numbers, default=None),
        )

    @classmethod
    def with_groups(
        cls,
        rows: Sequence[Mapping[str, Any]],
        names_at: Callable[[list[int]], Mapping[int, str]],
        *,
        listed: int,
    ) -> "Sums":
        """The sums with the largest groups.

        `rows` have `group_offset` too, the log offset of a record that names the group;
        `names_at`: the names at such offsets.
        """
        groups: dict[int, tuple[int, int]] = {}  # hash -> (transactions, log offset)
        for row in rows:
            if row["place"] == Place.ASKED and row["group"] is not None:
                so_far, at = groups.get(row["group"], (0, row["group_offset"]))
                groups[row["group"]] = so_far + row["transactions"], min(at, row["group_offset"])
        largest = sorted(groups, key=lambda group: (-groups[group][0], groups[group][1]))[:listed]
        named = names_at([groups[group][1] for group in largest])
        names = {group: named.get(groups[group][1]) or "" for group in largest}
        return cls.of(rows, names, groups_omitted=len(groups) - len(largest))

    @classmethod
    def without_groups(cls, rows: Sequence[Mapping[str, Any]], *, omitted: int) -> "Sums":
        """The sums of rows whose `group` is None, as there are too many groups."""
        return replace(cls.of(rows, {}), by_group=[], groups_omitted=omitted)

    def check_group(self, producer_group: str | None) -> None:
        """Raises NoSuchGroup."""
        if producer_group is None or self.begun:
            return
        if hash_of(producer_group) not in self.group_hashes:
            raise NoSuchGroup(f"no transaction in the log is of {producer_group}")


def _sum(rows: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(row[name] or 0 for row in rows)
