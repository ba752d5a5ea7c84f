"""Every large answer counts as memory, whatever it lists."""

from types import SimpleNamespace

import pytest

from app.answering import count
from app.bodies.budget import UNCOUNTED_BYTES, BodyBudget, BodyShare, NoRoom
from app.http.exchange import Reply

LIMIT = 4 * UNCOUNTED_BYTES
LONG = Reply(200, [b"x" * UNCOUNTED_BYTES, b"x"])
SHORT = Reply(200, b"x" * UNCOUNTED_BYTES)


def counted(budget: BodyBudget, method: str, reply: Reply) -> BodyShare:
    """The share of a request with this answer."""
    share = BodyShare(budget)
    share.reserve(1)
    count(SimpleNamespace(method=method), SimpleNamespace(share=share), reply)
    return share


def test_a_long_answer_is_counted_and_one_that_only_reads_is_refused_where_it_has_no_room():
    budget = BodyBudget(LIMIT)
    counted(budget, "GET", LONG)
    counted(budget, "GET", LONG)
    assert budget.answer_bytes == 2 * (UNCOUNTED_BYTES + 1)

    with pytest.raises(NoRoom):
        counted(budget, "GET", LONG)
    assert budget.answer_bytes == 2 * (UNCOUNTED_BYTES + 1)

    counted(budget, "POST", LONG)
    assert budget.answer_bytes == 3 * (UNCOUNTED_BYTES + 1), "what has been done is answered"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_short_answer_counts_with_its_connection(method):
    budget = BodyBudget(LIMIT)

    counted(budget, method, SHORT)

    assert budget.used_bytes == 0
