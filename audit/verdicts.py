"""Verdicts on a transaction, and the facts that lead to each.

Pure: Spark finds the facts, this judges them.

A log has millions of transactions and some dozens of different sets of facts: the facts of a
transaction travel as one number, transactions are counted by it, and each number is judged once.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntFlag, auto


class Fact(IntFlag):
    """Facts that the records of one transaction show."""

    HALF = auto()  # a half of it is in the log
    GONE = auto()  # its half was stored before the log's beginning
    COMMIT_OP = auto()
    ROLLBACK_OP = auto()
    PLAIN_OP = auto()  # a broker's op, which does not say which way it went
    PUBLISHED = auto()  # a message of it is in its real topic, or waits there for its time
    ALL_THERE = auto()  # every message of it does
    DOUBLED = auto()  # one of them does so twice
    HELD = auto()  # it was held, and not resumed since
    LATE = auto()  # its decision is behind the record that it was held
    UNCLEAR = auto()  # ALL_THERE and DOUBLED need a closer look
    ALTERED = auto()  # a final whose body is not its half's
    WRONG_HALF = auto()  # a final that names another half than its own
    OURS_WITHOUT_OP = auto()  # this service published a message of it, and no op decides it
    # a broker's op in front of every message that was published: a broker writes the final first,
    # so this op was a rollback
    OP_FIRST = auto()
    # a broker committed it, and stored the message among the halves instead of in its topic
    ASTRAY = auto()


HELD = "undecided_held"

# Name and meaning; every transaction has exactly one.
VERDICTS = {
    "committed_once": "committed, every message stored once",
    "committed_duplicated": "committed, a message stored more than once",
    "rolled_back_clean": "rolled back, nothing published",
    "rolled_back_but_delivered": "rolled back, and a message published all the same",
    "final_missing": "committed, and a message not published",
    "op_without_half": "decided, and nothing of it was ever begun",
    "undecided": "not decided yet",
    HELD: "held: waits for an operator",
    "resolved_late": "decided after it had been held",
    "unverifiable_retention": "begun before the log begins",
}
FAULTS = ("committed_duplicated", "rolled_back_but_delivered", "final_missing", "op_without_half")

# Beside the verdicts.
DAMAGED = "damaged"  # a stretch of the log that is no whole record
ALTERED = "altered"
WRONG_HALF = "wrong_half"
UNDECIDED_BUT_PUBLISHED = "undecided_but_published"
FLAGS = {
    ALTERED: Fact.ALTERED,
    WRONG_HALF: Fact.WRONG_HALF,
    UNDECIDED_BUT_PUBLISHED: Fact.OURS_WITHOUT_OP,
}

FINDINGS = (*VERDICTS, DAMAGED, *FLAGS)
FAIL_ON = (*FAULTS, DAMAGED, *FLAGS)  # unless a run has its own list


def _is_committed(facts: Fact) -> bool:
    """A broker's final without an op is a decision all the same: it writes the op later, and may
    die before.
    """
    published = Fact.PUBLISHED in facts and Fact.OURS_WITHOUT_OP not in facts
    has_final = published or Fact.ASTRAY in facts
    return Fact.COMMIT_OP in facts or (has_final and not _has_rollback(facts))


def _has_rollback(facts: Fact) -> bool:
    return bool(facts & (Fact.ROLLBACK_OP | Fact.OP_FIRST))


def _is_rolled_back(facts: Fact) -> bool:
    """A broker's op that has no final is a rollback."""
    if Fact.COMMIT_OP in facts:
        return False
    has_final = bool(facts & (Fact.PUBLISHED | Fact.ASTRAY))
    return _has_rollback(facts) or (Fact.PLAIN_OP in facts and not has_final)


def _is_contradicted(facts: Fact) -> bool:
    return _has_rollback(facts) and Fact.PUBLISHED in facts


def _is_published_once(facts: Fact) -> bool:
    return (
        _is_committed(facts)
        and not _is_contradicted(facts)
        and Fact.ALL_THERE in facts
        and Fact.DOUBLED not in facts
    )


def _is_never_published(facts: Fact) -> bool:
    return _is_rolled_back(facts) and Fact.PUBLISHED not in facts


def _is_open(facts: Fact) -> bool:
    return not _is_committed(facts) and not _is_rolled_back(facts)


_OF_BEGUN: Mapping[str, Callable[[Fact], bool]] = {
    "committed_once": lambda facts: _is_published_once(facts) and Fact.LATE not in facts,
    "committed_duplicated": lambda facts: (
        _is_committed(facts)
        and not _is_contradicted(facts)
        and Fact.ALL_THERE in facts
        and Fact.DOUBLED in facts
    ),
    "rolled_back_clean": lambda facts: _is_never_published(facts) and Fact.LATE not in facts,
    "rolled_back_but_delivered": _is_contradicted,
    "final_missing": lambda facts: (
        _is_committed(facts) and not _is_contradicted(facts) and Fact.ALL_THERE not in facts
    ),
    "undecided": lambda facts: _is_open(facts) and Fact.HELD not in facts,
    HELD: lambda facts: _is_open(facts) and Fact.HELD in facts,
    "resolved_late": lambda facts: (
        (_is_published_once(facts) or _is_never_published(facts)) and Fact.LATE in facts
    ),
}
_OF_OTHERS: Mapping[str, Callable[[Fact], bool]] = {
    "op_without_half": lambda facts: Fact.GONE not in facts,
    "unverifiable_retention": lambda facts: Fact.GONE in facts,
}


def fitting(facts: Fact) -> list[str]:
    """The verdicts that these facts bear out: exactly one, or the audit does not balance."""
    rules = _OF_BEGUN if Fact.HALF in facts else _OF_OTHERS
    return [name for name, fits in rules.items() if fits(facts)]


def verdict(facts: Fact) -> str | None:
    found = fitting(facts)
    return found[0] if len(found) == 1 else None


def is_wanted(facts: Fact, wanted: Sequence[str]) -> bool:
    """Do these of FINDINGS have it?"""
    return verdict(facts) in wanted or any(
        fact in facts for name, fact in FLAGS.items() if name in wanted
    )
