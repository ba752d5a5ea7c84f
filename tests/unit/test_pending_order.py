"""The order of begins, held in sixteen bytes each: the same as a plain dict says, whatever is added and discarded when."""

from hypothesis import given
from hypothesis import strategies as st

from txn.in_order import InOrder

changes = st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=400)


@given(changes, st.integers(-1, 300))
def test_it_holds_what_was_added_and_not_discarded_in_order(changes, after):
    order, model = InOrder(), {}
    for is_added, sequence in changes:
        if is_added and sequence not in model:
            order.add(sequence, f"id-{sequence}")
            model[sequence] = f"id-{sequence}"
        elif not is_added:
            order.discard(sequence)
            model.pop(sequence, None)

    assert len(order) == len(model)
    assert list(order.after(after)) == [model[sequence] for sequence in sorted(model) if sequence > after]


def test_what_is_discarded_while_somebody_goes_through_it_does_not_come_and_nothing_else_is_missed():
    order = InOrder()
    for sequence in range(500):
        order.add(sequence, f"id-{sequence}")

    seen = []
    for identifier in order.after(-1):
        seen.append(identifier)
        if len(seen) == 100:
            for sequence in range(490):
                order.discard(sequence)

    assert seen == [f"id-{sequence}" for sequence in [*range(100), *range(490, 500)]]
