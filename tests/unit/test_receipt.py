"""Receipt handles: what was put in comes out, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery import receipt
from storage.message import QueueId

numbers = st.integers(0, (1 << 64) - 1)


@given(st.lists(st.tuples(numbers, numbers), max_size=5), numbers)
def test_each_handle_names_its_place_and_its_lease(places, lease):
    handles = receipt.encode(places, lease)

    assert [receipt.decode(handle) for handle in handles] == [(*place, lease) for place in places]
    assert len(set(handles)) == len(set(places))


HANDLES = st.tuples(numbers, numbers, numbers).map(lambda parts: receipt.encode([parts[:2]], parts[2])[0])
BROKEN = (
    st.text("lh_ABCabc012-_+/=ü", max_size=36)
    | HANDLES.map(lambda handle: handle[:-1])
    | HANDLES.map(lambda one: one[:-1] + "=")
)


@given(st.lists(HANDLES, max_size=40) | st.lists(HANDLES | BROKEN, max_size=6))
def test_handles_together_name_what_each_of_them_names(handles):
    assert list(receipt.decode_all(handles)) == [receipt.decode(handle) for handle in handles]


@given(st.text() | st.text("lh_ABCabc012-_+/=", min_size=30, max_size=40).map(lambda text: f"lh_{text}"))
def test_whatever_is_no_handle_of_ours_is_none(text):
    parts = receipt.decode(text)

    assert parts is None or receipt.encode([parts[:2]], parts[2]) == [text.replace("+", "-").replace("/", "_")]


@pytest.mark.parametrize("text", ["", "lh_", "lh_x", "lh_" + "A" * 31, "lh_" + "ü" * 32, "lh_" + "=" * 32, "xx_" + "A" * 32])
def test_a_broken_handle_is_none(text):
    assert receipt.decode(text) is None


def test_queues_have_hashes_of_their_own():
    queues = [QueueId(topic, number) for topic in ("a", "a1", "1 a") for number in (0, 1, 11)]

    assert len({receipt.queue_hash(queue) for queue in queues}) == len(queues)
