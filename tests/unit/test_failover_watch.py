"""Times at which a replica takes the place of its service."""

import random

import pytest

from app.fencing.failover import FailoverWatch, LeftOutWatch
from app.replicas.options import ReplicaOptions
from tests.support.clock import ManualClock


def watch_on(clock: ManualClock, after_ms: int = 5_000) -> FailoverWatch:
    return FailoverWatch(clock, after_ms, random.Random(0))


def test_it_is_due_when_no_service_has_been_there_for_the_whole_time():
    clock = ManualClock()
    watch = watch_on(clock)
    clock.advance(4_999)
    assert not watch.is_due()
    watch.note_service()
    clock.advance(4_999)
    assert not watch.is_due()
    clock.advance(1)
    assert watch.is_due()


def test_it_is_put_off_by_a_time_that_is_not_the_same_for_two():
    pauses = set()
    for seed in range(20):
        clock = ManualClock()
        watch = FailoverWatch(clock, 5_000, random.Random(seed))
        clock.advance(5_000)
        watch.postpone()
        begin_ms = clock.monotonic_ms()
        while not watch.is_due():
            clock.advance(1)
        pauses.add(clock.monotonic_ms() - begin_ms)
    assert min(pauses) >= 1_000
    assert max(pauses) <= 2_000
    assert len(pauses) > 15


def test_each_node_that_tries_before_it_has_five_seconds():
    clock = ManualClock()
    watch = watch_on(clock)
    clock.advance(5_000)
    assert watch.is_its_turn(0)
    watch.postpone()
    clock.advance(4_999)
    assert not watch.is_its_turn(1)
    clock.advance(1)
    assert watch.is_its_turn(1)
    assert not watch.is_its_turn(2)
    watch.note_service()
    assert not watch.is_its_turn(0)


def test_without_a_time_it_is_never_due():
    clock = ManualClock()
    watch = watch_on(clock, 0)
    clock.advance(1_000_000)
    assert not watch.is_due()


@pytest.mark.parametrize("given", [-1, 1, 999])
def test_a_time_that_a_hand_over_takes_is_refused(given):
    with pytest.raises(ValueError, match="failover_after_ms must be 0, or at least"):
        ReplicaOptions(failover_after_ms=given)


def test_a_replica_is_left_out_when_it_was_so_at_two_looks_in_turn():
    clock = ManualClock()
    watch = LeftOutWatch(clock)
    assert watch.is_due()
    assert watch.note(["b"]) == []
    assert not watch.is_due()
    clock.advance(5_000)
    assert watch.is_due()
    assert watch.note(["c"]) == []
    assert watch.note(["b", "c"]) == ["c"]
    assert watch.note([]) == []
    assert watch.note(["b"]) == []
