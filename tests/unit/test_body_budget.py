"""The bytes of request bodies under way: never more than the limit, and all of them given back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.body_budget import BodyBudget, BodyShare
from app.problems import Refusal

LIMIT = 100
SHARES = 3

steps = st.tuples(
    st.integers(0, SHARES - 1),
    st.sampled_from(["add", "hold", "reserve", "close"]),
    st.integers(0, LIMIT),
)


@given(st.lists(steps, max_size=60))
def test_the_budget_is_the_sum_of_what_requests_hold_and_is_never_exceeded(taken):
    budget = BodyBudget(LIMIT)
    shares = [BodyShare(budget) for _ in range(SHARES)]
    held = [0] * SHARES

    for index, step, count in taken:
        if step == "close":
            shares[index].close()
            held[index] = 0
        elif step == "hold" and count <= held[index]:
            shares[index].hold(count)
            held[index] = count
        elif step == "add" and sum(held) + count <= LIMIT:
            shares[index].add(count)
            held[index] += count
        elif step == "reserve" and sum(held) < LIMIT and count:
            left = LIMIT - sum(held)
            has_plenty = budget.has_plenty(count)
            reserved = shares[index].reserve(count)
            assert has_plenty == (reserved == count)
            assert min(count, left // 8) <= reserved <= min(count, 1 + left // 8)
            held[index] += reserved
        elif step in ("add", "reserve") and sum(held) + count > LIMIT:
            assert not budget.has_plenty(count)
            with pytest.raises(Refusal) as refused:
                getattr(shares[index], step)(count)
            assert (refused.value.code, refused.value.headers) == (
                "overloaded",
                {"Retry-After": "1"},
            )
        assert budget.used_bytes == sum(held) <= LIMIT
    for share in shares:
        share.close()

    assert budget.used_bytes == 0
