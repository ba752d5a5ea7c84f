"""The bytes of bodies and answers under way: never more than the limit, and all of them given
back.
"""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bodies.budget import SMALL_BYTES, BodyBudget, BodyShare, NoRoom
from app.problems import Refusal

LIMIT = 64 * SMALL_BYTES
LARGE = LIMIT - LIMIT // 16  # of large bodies and answers together
ANSWERS = LIMIT * 3 // 4
SHARES = 3

steps = st.tuples(
    st.integers(0, SHARES - 1),
    st.sampled_from(["add", "keep", "reserve", "fit", "hold_rest", "close"]),
    st.one_of(st.integers(1, 2 * SMALL_BYTES), st.integers(1, LIMIT)),
)


@given(st.lists(steps, max_size=60))
def test_the_budget_is_the_sum_of_what_requests_hold_and_is_never_exceeded(taken):
    budget = BodyBudget(LIMIT)
    shares = [BodyShare(budget) for _ in range(SHARES)]
    bodies, answers = [0] * SHARES, [0] * SHARES
    oversized: set[int] = set()

    for index, step, count in taken:
        share = shares[index]
        left = min(LARGE - sum(bodies), ANSWERS) - sum(answers)
        if step == "close":
            share.close()
            bodies[index] = answers[index] = 0
        elif step == "keep":
            bodies[index] = min(bodies[index], count)
            share.keep(bodies[index])
        elif step == "hold_rest":
            share.hold_rest(count)
            answers[index] = min(answers[index], count)
        elif step == "add":
            limit = LIMIT if bodies[index] + count <= SMALL_BYTES else LARGE
            if sum(bodies) + min(sum(answers), ANSWERS) + count <= limit:
                share.add(count)
                bodies[index] += count
            else:
                with pytest.raises(Refusal) as refused:
                    share.add(count)
                assert refused.value.headers == {"Retry-After": "1"}
        elif step == "reserve":
            left += answers[index]
            answers[index] = 0
            share.hold_rest(0)
            has_plenty = budget.has_plenty(count)
            if left > 0:
                answers[index] = share.reserve(count)
                assert has_plenty == (answers[index] == count)
                assert min(count, left // 8) <= answers[index] <= min(count, 1 + left // 8)
            else:
                assert not has_plenty
                with pytest.raises(NoRoom):
                    share.reserve(count)
        elif count <= max(answers[index], left + answers[index]) or (
            (count > ANSWERS or index in oversized) and oversized <= {index}
        ):
            share.fit(count)
            answers[index] = count
            if count > ANSWERS:
                oversized.add(index)
        else:
            with pytest.raises(NoRoom):
                share.fit(count)
            answers[index] = 0
        oversized = {one for one in oversized if answers[one]}
        assert (budget.body_bytes, budget.answer_bytes) == (sum(bodies), sum(answers))
        assert len(oversized) <= 1
        assert oversized or sum(answers) <= ANSWERS
        assert oversized or budget.used_bytes <= LIMIT
    for share in shares:
        share.close()

    assert budget.used_bytes == 0


def test_answers_leave_room_for_bodies_and_large_bodies_leave_room_for_small_ones():
    budget = BodyBudget(LIMIT)
    reads, sends, decision = BodyShare(budget), BodyShare(budget), BodyShare(budget)

    reads.fit(2 * LIMIT)
    sends.add(LARGE - ANSWERS)
    decision.add(SMALL_BYTES)

    with pytest.raises(Refusal):
        sends.add(1)
    with pytest.raises(NoRoom):
        BodyShare(budget).reserve(1)


def test_an_answer_that_has_no_room_is_called_when_there_is_the_one_that_waits_longest_first():
    budget, called = BodyBudget(LIMIT), []
    first, second = BodyShare(budget), BodyShare(budget)
    first.fit(ANSWERS // 2)
    second.fit(ANSWERS - ANSWERS // 2)

    budget.call_when_room(ANSWERS // 2 + 1, large := lambda: called.append("large"))
    budget.call_when_room(1, lambda: called.append("small"))
    first.close()
    assert called == [], "what waits longest has its turn before what is smaller"

    second.hold_rest(1)
    assert called == ["large", "small"]

    budget.call_when_room(ANSWERS, lambda: called.append("other"))
    budget.forget_call(large)
    assert called == ["large", "small"], "there is no room"
    second.close()
    assert called == ["large", "small", "other"]


def test_room_that_came_between_the_refusal_and_the_wait_ends_the_wait_at_once():
    budget, called = BodyBudget(LIMIT), []
    held = BodyShare(budget)
    held.fit(ANSWERS)
    with pytest.raises(NoRoom) as refused:
        BodyShare(budget).fit(SMALL_BYTES)
    held.close()

    budget.call_when_room(refused.value.byte_count, lambda: called.append("waiting"))

    assert called == ["waiting"]


def test_a_call_that_is_withdrawn_is_not_made_and_lets_the_next_one_have_the_room():
    budget, called = BodyBudget(LIMIT), []
    held = BodyShare(budget)
    held.fit(ANSWERS - 1)
    budget.call_when_room(ANSWERS, withdrawn := lambda: called.append("withdrawn"))
    budget.call_when_room(1, lambda: called.append("next"))

    budget.forget_call(withdrawn)
    budget.wake()

    assert called == ["next"]


def test_a_lack_of_room_keeps_its_size_where_it_is_copied():
    assert pickle.loads(pickle.dumps(NoRoom(7))).byte_count == 7
