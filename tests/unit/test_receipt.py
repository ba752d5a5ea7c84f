"""Receipt handles: what was put in comes out, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.leases import receipt_handle
from storage.message import QueueId

numbers = st.integers(0, (1 << 64) - 1)


@given(st.lists(st.tuples(numbers, numbers), max_size=5), numbers)
def test_each_handle_names_its_place_and_its_lease(places, lease):
    handles = receipt_handle.encode(places, lease)

    assert [receipt_handle.decode(handle) for handle in handles] == [
        (*place, lease) for place in places
    ]
    assert len(set(handles)) == len(set(places))


@given(numbers, st.integers(0, 1 << 60), st.integers(1, 300), numbers)
def test_neighbours_of_one_lease_get_the_handles_of_each(queue, first, count, lease):
    places = [(queue, first + number) for number in range(count)]

    assert [
        one.decode() for one in receipt_handle.encode_run(queue, first, count, lease)
    ] == receipt_handle.encode(places, lease)


HANDLES = st.tuples(numbers, numbers, numbers).map(
    lambda parts: receipt_handle.encode([parts[:2]], parts[2])[0]
)
BROKEN = (
    st.text("lh_ABCabc012-_+/=ü\n", max_size=36)
    | HANDLES.map(lambda handle: handle[:-1])
    | HANDLES.map(lambda one: one[:-1] + "=")
)


@given(st.lists(HANDLES, max_size=40) | st.lists(HANDLES | BROKEN, max_size=6))
def test_handles_together_name_what_each_of_them_names(handles):
    assert list(receipt_handle.decode_all(handles)) == [
        receipt_handle.decode(handle) for handle in handles
    ]


@pytest.mark.parametrize("at", range(35))
@pytest.mark.parametrize("piece", ["\n", "A", "/", "\nlh_", "A\nlh_"])
def test_a_handle_that_is_none_of_ours_is_none_among_others(at, piece):
    ours = receipt_handle.encode([(7, 8), (7, 9), (7, 10)], 11)
    broken = (ours[1][:at] + piece + ours[1][at + len(piece) :])[:35]
    for handles in ([ours[0], broken, ours[2]], [broken, ours[0]], ["lh/" + ours[0][3:], broken]):
        assert list(receipt_handle.decode_all(handles)) == [
            receipt_handle.decode(handle) for handle in handles
        ]


@given(
    st.text()
    | st.text("lh_ABCabc012-_+/=", min_size=30, max_size=40).map(lambda text: f"lh_{text}")
)
def test_whatever_is_no_handle_of_ours_is_none(text):
    parts = receipt_handle.decode(text)

    assert parts is None or receipt_handle.encode([parts[:2]], parts[2]) == [
        text.replace("+", "-").replace("/", "_")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lh_",
        "lh_x",
        "lh_" + "A" * 31,
        "lh_" + "ü" * 32,
        "lh_" + "=" * 32,
        "xx_" + "A" * 32,
        "lh_\n" + "A" * 31,
    ],
)
def test_a_broken_handle_is_none(text):
    assert receipt_handle.decode(text) is None


def test_queues_have_hashes_of_their_own():
    queues = [QueueId(topic, number) for topic in ("a", "a1", "1 a") for number in (0, 1, 11)]

    assert len({receipt_handle.queue_hash(queue) for queue in queues}) == len(queues)
