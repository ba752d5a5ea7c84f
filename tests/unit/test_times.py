"""Times of the API as texts: what is read and shown at both ends of the calendar."""

import pytest

from app.encoding import codec
from app.problems import Refusal

FIRST, LAST = "0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"


@pytest.mark.parametrize("text", [FIRST, "1969-12-31T23:59:59.999Z", "2026-03-02T10:15:00Z", LAST])
def test_a_time_is_shown_as_it_was_read(text):
    shown = codec.rfc3339(codec.parse_time(text, "/at"))

    assert shown == text.replace(":00Z", ":00.000Z")


def test_a_time_whose_offset_leads_before_the_first_year_is_the_beginning_of_that():
    assert codec.rfc3339(codec.parse_time("0001-01-01T00:00:00+23:59", "/at")) == FIRST


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59.999-00:01", "9999-12-31T23:59:59-23:59"])
def test_a_time_whose_offset_leads_behind_the_last_year_is_refused(text):
    with pytest.raises(Refusal) as refused:
        codec.parse_time(text, "/at")

    (error,) = refused.value.errors
    assert (error.pointer, error.code) == ("/at", "out_of_range")


@pytest.mark.parametrize("wall_ms", [1 << 53, 1 << 62, 253_402_300_800_000])
def test_a_time_behind_the_last_year_is_shown_as_the_end_of_that(wall_ms):
    assert codec.rfc3339(wall_ms)[:19] == LAST[:19]


def test_a_time_before_the_first_year_is_shown_as_the_beginning_of_that():
    assert codec.rfc3339(-(1 << 53))[:19] == FIRST[:19]
