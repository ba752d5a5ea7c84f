"""What the rows of all transactions sum up to: plain values, counted by Spark for each set of
facts. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

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


def _sum(rows: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(row[name] or 0 for row in rows)
