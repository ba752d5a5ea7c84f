"""Which segments may go, and when new messages are refused: as tables."""

import pytest

from storage.local.retention_plan import (
    OnFull,
    RetentionPolicy,
    UsedSample,
    growth_of,
    plan_deletion,
    project_full,
    refuses,
)

HOUR_MS = 3_600_000
FOUR = 1_000 * 24 * HOUR_MS + 4 * HOUR_MS  # a day's 04:00 UTC
NOON = FOUR + 8 * HOUR_MS
POLICY = RetentionPolicy(
    retention_ms=72 * HOUR_MS,
    delete_hours=frozenset({4}),
    batch=3,
    clean_above=0.75,
    force_above=0.85,
    refuse_above=0.90,
    on_full=OnFull.KEEP,
)
FORCING = POLICY._replace(on_full=OnFull.DELETE_OLDEST)
OLD, YOUNG = 73, 71  # hours

PLANS = [
    # age in hours of the newest record of each segment but the last, policy, now, used, how many go
    ([], POLICY, FOUR, 0.99, 0),
    ([OLD, YOUNG], POLICY, FOUR, 0.10, 1),
    ([OLD, YOUNG], POLICY, FOUR + HOUR_MS - 1, 0.10, 1),
    ([OLD, YOUNG], POLICY, FOUR + HOUR_MS, 0.10, 0),
    ([OLD, YOUNG], POLICY, FOUR - 1, 0.10, 0),
    ([72, YOUNG], POLICY, FOUR, 0.10, 1),
    ([OLD, YOUNG], POLICY, NOON, 0.75, 0),
    ([OLD, YOUNG], POLICY, NOON, 0.76, 1),
    ([OLD, YOUNG], POLICY, NOON, 0.99, 1),
    ([YOUNG, OLD], POLICY, FOUR, 0.99, 0),  # no holes
    ([OLD] * 5, POLICY, FOUR, 0.10, 3),
    ([OLD, YOUNG], FORCING, NOON, 0.10, 0),
    ([OLD, YOUNG], FORCING, NOON, 0.85, 1),
    ([OLD, YOUNG], FORCING, NOON, 0.86, 2),
    ([YOUNG] * 5, FORCING, NOON, 0.86, 3),
]


@pytest.mark.parametrize(("ages", "policy", "now_ms", "used", "count"), PLANS)
def test_segments_go_at_their_hour_or_when_the_disk_is_short_and_unexpired_ones_only_where_that_was_chosen(
    ages, policy, now_ms, used, count
):
    newest_ms = [now_ms - age * HOUR_MS for age in ages]

    assert plan_deletion(newest_ms, policy, now_ms=now_ms, used_ratio=used) == count


@pytest.mark.parametrize(
    ("used", "before", "now"),
    [
        (0.90, False, False),
        (0.91, False, True),
        (0.86, True, True),
        (0.86, False, False),
        (0.85, True, False),
    ],
)
def test_new_messages_are_refused_above_one_border_until_the_disk_is_below_the_other(
    used, before, now
):
    assert refuses(POLICY, used_ratio=used, refused_before=before) is now


@pytest.mark.parametrize(
    ("samples", "when"),
    [
        ([], None),
        ([(0, 10)], None),
        ([(0, 10), (100, 10)], None),
        ([(0, 10), (100, 5)], None),
        ([(0, 10), (100, 20)], 900),
        ([(0, 10), (50, 90), (100, 20)], 900),
        ([(0, 10), (100, 200)], 100),
    ],
)
def test_a_disk_that_fills_is_full_when_it_goes_on_as_before(samples, when):
    assert project_full([UsedSample(*sample) for sample in samples], limit_bytes=100) == when


@pytest.mark.parametrize(
    ("samples", "rate", "passed_ms"),
    [
        ([], 0, 0),
        ([(0, 10)], 0, 0),
        ([(0, 10), (60_000, 40), (120_000, 250)], 2, 120_000),
        ([(0, 10), (100, 5)], -50, 100),
        ([(100, 10), (0, 20)], 0, 0),  # the clock was set back
    ],
)
def test_the_growth_is_that_from_the_first_sample_to_the_last(samples, rate, passed_ms):
    growth = growth_of([UsedSample(*sample) for sample in samples])

    assert (growth.bytes_per_second, growth.passed_ms) == (rate, passed_ms)
