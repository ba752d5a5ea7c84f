"""Which halves are decided, from the half topic and the op topic alone."""

import pytest

from storage.formats.op_message import half_offsets
from storage.message import QueueId, StoredMessage
from tests.support.check_pass import (
    CheckPass,
    Half,
    OpMessage,
    check_pass,
    decided_transactions,
    half_of,
    op_of,
)
from txn.half_message import HALF_QUEUE, OP_QUEUE


def halves(count: int) -> list[Half]:
    return [Half(offset, f"txn_{offset}") for offset in range(count)]


def stored(queue: QueueId, body: bytes = b"", **fields) -> StoredMessage:
    return StoredMessage(
        queue=queue,
        message_id="AC10",
        body=body,
        born_at_ms=0,
        queue_offset=fields.pop("at", 7),
        stored_at_ms=0,
        **fields,
    )


def test_what_an_op_names_is_decided_and_the_rest_is_not():
    found = check_pass(halves(4), [OpMessage(0, (2,)), OpMessage(1, (0,))])

    assert found.decided == {2: 0, 0: 1}
    assert found.undecided == [1, 3]


def test_of_two_ops_that_name_a_half_the_first_has_decided_it():
    assert check_pass(halves(1), [OpMessage(0, (0,)), OpMessage(1, (0,))]).decided == {0: 0}


def test_a_half_that_was_stored_again_while_it_was_young_is_decided_with_its_original():
    found = check_pass([Half(0, "a"), Half(1, "b"), Half(2, "a", copy_of=0)], [OpMessage(0, (0,))])

    assert found.decided == {0: 0, 2: 0}
    assert found.undecided == [1]


def test_a_transaction_is_decided_by_an_op_about_any_of_its_halves():
    written = [Half(0, "a"), Half(1, "b"), Half(2, "a"), Half(3, "a")]

    found = check_pass(written, [OpMessage(0, (2,))])

    assert found.undecided == [0, 1, 3]  # a broker goes on asking about the copies
    assert decided_transactions(written, found) == {"a": 0, "b": None}


def test_the_next_pass_begins_with_what_is_undecided_and_the_ops_that_count_behind_it():
    ops = [OpMessage(0, (0, 1)), OpMessage(1, (3,)), OpMessage(2, (4, 5))]

    found = check_pass(halves(6), ops)

    assert found.undecided == [2]
    assert (found.next_half_offset, found.next_op_offset) == (2, 1)
    again = check_pass(
        halves(6), ops, half_offset=found.next_half_offset, op_offset=found.next_op_offset
    )
    assert again == CheckPass({3: 1, 4: 2, 5: 2}, [2], 2, 1)


def test_a_pass_that_finds_everything_decided_ends_at_the_end_of_both_queues():
    found = check_pass(halves(3), [OpMessage(0, (0,)), OpMessage(1, (1, 2))])

    assert (found.undecided, found.next_half_offset, found.next_op_offset) == ([], 3, 2)


def test_an_op_says_nothing_about_a_half_before_the_groups_offset():
    found = check_pass([Half(9, "a", copy_of=2)], [OpMessage(5, (2,))], half_offset=9, op_offset=5)

    assert found == CheckPass({}, [9], 9, 6)


def test_nothing_is_found_in_nothing_and_the_offsets_stay():
    assert check_pass([], [], half_offset=12, op_offset=3) == CheckPass({}, [], 12, 3)


@pytest.mark.parametrize(
    ("body", "offsets"),
    [
        (b"12", (12,)),
        (b"12,15,18,", (12, 15, 18)),
        (b"12,15", (12, 15)),
        (b"", ()),
        (b",", ()),
        (b"12,x,-3,\xb9,4", (12, 4)),
        (b"\xd9\xa3,4", (4,)),
    ],
)
def test_an_op_names_its_halves_in_any_of_rocketmqs_forms(body, offsets):
    assert half_offsets(body) == offsets


def test_only_an_op_with_the_tag_decides():
    assert op_of(stored(OP_QUEUE, b"12,", tag="d")) == OpMessage(7, (12,))
    assert op_of(stored(OP_QUEUE, b"12,", tag="other")) == OpMessage(7, ())


def test_a_half_belongs_to_its_transaction_or_where_it_names_none_to_its_message():
    assert half_of(stored(HALF_QUEUE, system={"__transactionId__": "txn_1"})) == Half(7, "txn_1")
    assert half_of(stored(HALF_QUEUE)) == Half(7, "AC10")


def test_a_copy_names_its_original():
    assert half_of(stored(HALF_QUEUE, system={"TRAN_PREPARED_QUEUE_OFFSET": "3"})).copy_of == 3
    assert half_of(stored(HALF_QUEUE, system={"TRAN_PREPARED_QUEUE_OFFSET": "-1"})).copy_of is None
