"""Whatever the records of a transaction show, exactly one verdict fits."""

import pytest

from audit.verdicts import FAIL_ON, FAULTS, FINDINGS, VERDICTS, Fact, fitting, verdict


def test_every_set_of_facts_has_exactly_one_verdict():
    everything = int(~Fact(0))

    for bits in range(everything + 1):
        assert len(fitting(Fact(bits))) == 1, Fact(bits)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Fact.HALF, "undecided"),
        (Fact.HALF | Fact.HELD, "undecided_held"),
        (Fact.HALF | Fact.COMMIT_OP | Fact.PUBLISHED | Fact.ALL_THERE, "committed_once"),
        # a broker died before its op
        (Fact.HALF | Fact.PUBLISHED | Fact.ALL_THERE, "committed_once"),
        (Fact.HALF | Fact.PLAIN_OP | Fact.PUBLISHED | Fact.ALL_THERE, "committed_once"),
        # a broker's op without a final is a rollback
        (Fact.HALF | Fact.PLAIN_OP, "rolled_back_clean"),
        # and one that lies in front of its final was a rollback
        (
            Fact.HALF | Fact.PLAIN_OP | Fact.OP_FIRST | Fact.PUBLISHED | Fact.ALL_THERE,
            "rolled_back_but_delivered",
        ),
        # committed, and the message lies where no consumer receives it
        (Fact.HALF | Fact.PLAIN_OP | Fact.ASTRAY, "final_missing"),
        (Fact.HALF | Fact.ASTRAY, "final_missing"),
        (
            Fact.HALF | Fact.PLAIN_OP | Fact.ASTRAY | Fact.PUBLISHED | Fact.ALL_THERE,
            "committed_once",
        ),
        (Fact.HALF | Fact.ROLLBACK_OP, "rolled_back_clean"),
        (Fact.HALF | Fact.COMMIT_OP, "final_missing"),
        (Fact.HALF | Fact.COMMIT_OP | Fact.PUBLISHED, "final_missing"),
        (
            Fact.HALF | Fact.COMMIT_OP | Fact.PUBLISHED | Fact.ALL_THERE | Fact.DOUBLED,
            "committed_duplicated",
        ),
        (Fact.HALF | Fact.ROLLBACK_OP | Fact.PUBLISHED, "rolled_back_but_delivered"),
        (
            Fact.HALF | Fact.ROLLBACK_OP | Fact.COMMIT_OP | Fact.PUBLISHED | Fact.ALL_THERE,
            "rolled_back_but_delivered",
        ),
        (Fact.HALF | Fact.ROLLBACK_OP | Fact.COMMIT_OP, "final_missing"),
        (Fact.HALF | Fact.HELD | Fact.LATE | Fact.ROLLBACK_OP, "resolved_late"),
        # late, and wrong: the fault is told
        (Fact.HALF | Fact.HELD | Fact.LATE | Fact.COMMIT_OP, "final_missing"),
        (Fact.COMMIT_OP | Fact.PUBLISHED | Fact.ALL_THERE, "op_without_half"),
        (Fact.GONE | Fact.COMMIT_OP, "unverifiable_retention"),
    ],
)
def test_the_facts_of_a_transaction_have_their_verdict(facts, expected):
    assert verdict(facts) == expected


def test_faults_are_findings_unless_a_run_is_told_otherwise_and_waiting_is_none():
    assert set(FAULTS) < set(FAIL_ON) < set(FINDINGS)
    assert set(VERDICTS) - set(FAIL_ON) == {
        "committed_once", "rolled_back_clean", "undecided", "undecided_held", "resolved_late",
        "unverifiable_retention",
    }  # fmt: skip
