"""The order of begins, held in sixteen bytes each: the same as a plain dict says, whatever is added
and discarded when.
"""

from hypothesis import given
from hypothesis import strategies as st

from txn.in_order import InOrder

changes = st.lists(
    st.tuples(st.sampled_from(["open", "closed", "close", "discard"]), st.integers(0, 300)),
    max_size=400,
)


@given(changes, st.integers(-1, 300))
def test_it_holds_what_was_added_and_not_discarded_in_order_and_knows_what_is_open(changes, after):
    order, model = InOrder(), {}
    for change, sequence in changes:
        if change in ("open", "closed") and sequence not in model:
            order.add(sequence, f"id-{sequence}", is_open=change == "open")
            model[sequence] = change == "open"
        elif change == "close":
            order.close(sequence)
            if sequence in model:
                model[sequence] = False
        elif change == "discard":
            order.discard(sequence)
            model.pop(sequence, None)

    expected = [sequence for sequence in sorted(model) if sequence > after]
    assert (len(order), order.open_count) == (len(model), sum(model.values()))
    assert list(order.after(after)) == [f"id-{sequence}" for sequence in expected]
    assert list(order.after(after, only_open=True)) == [
        f"id-{sequence}" for sequence in expected if model[sequence]
    ]
    assert [order.get(sequence) for sequence in range(300)] == [
        f"id-{sequence}" if sequence in model else None for sequence in range(300)
    ]


def test_what_is_discarded_while_somebody_goes_through_it_does_not_come_and_nothing_else_is_missed():
    order = InOrder()
    for sequence in range(500):
        order.add(sequence, f"id-{sequence}", is_open=True)

    seen = []
    for identifier in order.after(-1, only_open=True):
        seen.append(identifier)
        if len(seen) == 100:
            for sequence in range(450):
                order.discard(sequence)
            for sequence in range(450, 490):
                order.close(sequence)

    assert seen == [f"id-{sequence}" for sequence in [*range(100), *range(490, 500)]]
