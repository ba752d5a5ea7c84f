"""When a failed check is sent again, and when a host is left alone."""

import pytest

from storage.circuit import Circuit
from txn.retry_plan import LONGEST_RETRY_AFTER_MS, wait_before_retry


def waits(interval_ms: int, *, random: float = 0.0, retry_after_ms: int | None = None) -> list[int]:
    return [
        wait_before_retry(
            interval_ms, failures=number, retry_after_ms=retry_after_ms, random=random
        )
        for number in range(1, 14)
    ]


def test_the_wait_doubles_from_the_interval_to_half_a_minute():
    assert waits(10)[:5] == [10, 20, 40, 80, 160]
    assert waits(10)[-2:] == [20_480, 30_000]
    assert waits(20_000)[:3] == [20_000, 30_000, 30_000]


def test_an_interval_of_more_than_half_a_minute_is_the_wait():
    assert set(waits(60_000)) == {60_000}


def test_chance_takes_up_to_a_tenth_and_never_adds():
    for exact, jittered in zip(waits(1_000), waits(1_000, random=0.999), strict=True):
        assert exact * 0.9 <= jittered < exact


def test_what_the_endpoint_asks_for_is_kept_up_to_an_hour():
    assert waits(10, retry_after_ms=5_000)[:2] == [5_000, 5_000]
    assert waits(10, retry_after_ms=5_000)[-1] == 30_000
    assert waits(10, retry_after_ms=86_400_000)[0] == LONGEST_RETRY_AFTER_MS == 3_600_000


def test_a_check_that_failed_a_thousand_times_still_has_a_wait():
    assert wait_before_retry(10, failures=1_000, retry_after_ms=None, random=0) == 30_000


def test_a_host_has_room_for_as_many_as_it_may_have_at_once():
    assert [Circuit().room(0, concurrency=4, under_way=number) for number in range(6)] == [
        4,
        3,
        2,
        1,
        0,
        0,
    ]


def test_after_ten_failures_in_a_row_a_host_is_left_alone_and_then_asked_once_at_a_time():
    circuit = Circuit()
    for _ in range(9):
        circuit.note(0, has_failed=True)
    assert circuit.room(0, concurrency=4, under_way=0) == 4

    circuit.note(0, has_failed=True)

    assert circuit.room(999, concurrency=4, under_way=0) == 0
    assert circuit.room(1_000, concurrency=4, under_way=0) == 1
    assert circuit.room(1_000, concurrency=4, under_way=1) == 0


@pytest.mark.parametrize(
    ("more", "pause_ms"), [(0, 1_000), (1, 2_000), (4, 16_000), (5, 30_000), (90, 30_000)]
)
def test_its_pauses_double_from_a_second_to_half_a_minute(more, pause_ms):
    circuit = Circuit()
    for _ in range(10 + more):
        circuit.note(7, has_failed=True)

    assert circuit.closed_again_ms == 7 + pause_ms


def test_one_answer_closes_the_circuit():
    circuit = Circuit()
    for _ in range(50):
        circuit.note(0, has_failed=True)

    circuit.note(0, has_failed=False)

    assert circuit.room(0, concurrency=4, under_way=0) == 4
