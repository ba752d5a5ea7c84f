"""When a cron line fires: Debian's rules, in every time zone, and on the days on which clocks are
turned.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from cronsim import CronSim
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.schedules.schemas import CronInput, RescheduleInput
from scheduler.cron_line import CronLine
from storage.errors import InvalidRequest

BERLIN = "Europe/Berlin"


def ms(text: str, zone: str = "UTC") -> int:
    """A local time; one with an offset is that moment."""
    moment = datetime.fromisoformat(text)
    return int(
        (moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))).timestamp() * 1_000
    )


def fires(line: str, zone: str, *, after: str, count: int) -> list[str]:
    found = CronLine(line, zone)
    return [found.as_local(moment_ms) for moment_ms in found.upcoming(ms(after, zone), count)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("0 6 * * 1-5", ["2026-03-02T06:00:00+01:00", "2026-03-03T06:00:00+01:00"]),
        ("*/20 10 * * *", ["2026-02-28T10:00:00+01:00", "2026-02-28T10:20:00+01:00"]),
        # either of the two, as both are named
        ("0 0 1,15 * MON", ["2026-03-01T00:00:00+01:00", "2026-03-02T00:00:00+01:00"]),
        # both, as one begins with a star
        ("0 0 */15 * MON", ["2026-03-16T00:00:00+01:00", "2026-06-01T00:00:00+02:00"]),
        ("0 12 LW * *", ["2026-03-31T12:00:00+02:00", "2026-04-30T12:00:00+02:00"]),
        ("0 0 * * 7", ["2026-03-01T00:00:00+01:00", "2026-03-08T00:00:00+01:00"]),
        ("@monthly", ["2026-03-01T00:00:00+01:00", "2026-04-01T00:00:00+02:00"]),
        ("*/30 * * * * *", ["2026-02-28T00:00:30+01:00", "2026-02-28T00:01:00+01:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00:00+01:00", "2032-02-29T00:00:00+01:00"]),
    ],
)
def test_a_line_fires_at_the_times_that_it_names(line, expected):
    assert fires(line, BERLIN, after="2026-02-28T00:00:00", count=2) == expected


def test_a_time_that_does_not_exist_fires_when_the_clock_has_been_turned():
    expected = [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]

    assert fires("30 2 * * *", BERLIN, after="2026-03-28T00:00:00", count=3) == expected
    assert fires("0,30 2 * * *", BERLIN, after="2026-03-29T00:00:00", count=2) == [
        expected[1],
        "2026-03-30T02:00:00+02:00",
    ]


def test_a_time_that_comes_twice_fires_once_the_first_time():
    expected = [
        "2026-10-24T02:30:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]

    assert fires("30 2 * * *", BERLIN, after="2026-10-24T00:00:00", count=3) == expected


def test_asked_in_an_hour_that_comes_twice_what_was_due_in_the_first_one_is_past():
    second_hour = "2026-10-25T02:10:00+01:00"

    assert fires("30 2 * * *", BERLIN, after=second_hour, count=1) == ["2026-10-26T02:30:00+01:00"]
    assert CronLine("30 2 * * *", BERLIN).latest(after_ms=0, until_ms=ms(second_hour), count=1) == [
        ms("2026-10-25T02:30:00+02:00")
    ]


def test_a_line_with_a_star_for_hour_or_minute_follows_the_clock_as_it_runs():
    assert fires("0 * * * *", BERLIN, after="2026-03-29T01:30:00", count=2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-29T04:00:00+02:00",
    ]
    assert fires("*/30 2 * * *", BERLIN, after="2026-10-25T00:00:00", count=4) == [
        "2026-10-25T02:00:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T02:30:00+01:00",
    ]
    assert fires("*/30 2 * * *", BERLIN, after="2026-03-29T00:00:00", count=1) == [
        "2026-03-30T02:00:00+02:00"
    ]


def test_a_day_without_midnight_begins_later():
    assert fires("0 0 * * *", "America/Havana", after="2026-03-07T12:00:00", count=2) == [
        "2026-03-08T01:00:00-04:00",
        "2026-03-09T00:00:00-04:00",
    ]


@pytest.mark.parametrize(
    "line",
    [
        *(
            "",
            "*",
            "* * * *",
            "* * * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "@reboot",
        ),
        *(
            "5-1 * * * *",
            "1, * * * *",
            "a * * * *",
            "* * * * 1#6",
            "0 0 30 2 *",
            "@",
            "-1 * * * *",
            "*/0 * * * *",
            "* * * * *L",
        ),
    ],
)
def test_what_is_no_line_is_refused_by_its_name(line):
    with pytest.raises(InvalidRequest, match="not a cron line") as refused:
        CronLine(line, "UTC")
    assert refused.value.pointer == "/cron"


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Olympus", "Europe", "../etc/passwd", "/etc/passwd", "tzdata.zi", "a\0b", "x" * 300],
)
def test_what_is_no_time_zone_is_refused_by_its_name(zone):
    with pytest.raises(InvalidRequest, match="no time zone") as refused:
        CronLine("* * * * *", zone)
    assert refused.value.pointer == "/time_zone"


def test_the_latest_of_a_line_that_fires_every_second_are_found_at_once(monkeypatch):
    looked_at = 0

    class Counted(CronSim):
        def __next__(self) -> datetime:
            nonlocal looked_at
            looked_at += 1
            return super().__next__()

    monkeypatch.setattr("scheduler.cron_line.CronSim", Counted)
    until_ms = ms("2026-06-01T12:00:00", BERLIN)

    found = CronLine("* * * * * *", BERLIN).latest(after_ms=0, until_ms=until_ms, count=100)

    assert found == [until_ms - 1_000 * before for before in range(99, -1, -1)]
    assert looked_at < 110


def test_a_line_that_names_no_day_at_all_never_fires():
    line = CronLine("0 0 */20 * 1L", "UTC")  # the 1st or 21st, if it is the last Monday

    assert line.after(ms("2026-01-01T00:00:00")) is None
    assert line.upcoming(ms("2026-01-01T00:00:00"), 5) == []
    assert line.latest(after_ms=0, until_ms=ms("2026-01-01T00:00:00"), count=5) == []


@pytest.mark.parametrize(
    "line", ["0 0 */20 * 1L", "59 59 23 29 2 5#5", "0 0 29 2 */7", "0 0 */9 2 5#5", "0 0 29 2 *"]
)
def test_the_search_for_a_time_looks_at_no_more_days_than_fifty_years_have(line, monkeypatch):
    """Some 20 ms, whatever the line. The library looks at some days twice."""
    looked_at = 0

    class Counted(CronSim):
        def match_day(self, *day: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return super().match_day(*day)

    monkeypatch.setattr("scheduler.cron_line.CronSim", Counted)

    CronLine(line, BERLIN).after(ms("2026-01-01T00:00:00"))

    assert 0 < looked_at <= 50 * (366 + 2 * 12)


def test_a_line_has_at_most_255_characters_however_it_is_given():
    for line in ("0," * 126 + "0 * * * *", "* " * 50_000):
        for kind, more in ((CronInput, {"topic": "t", "message": {}}), (RescheduleInput, {})):
            with pytest.raises(msgspec.ValidationError, match="<= 255"):
                msgspec.convert({"cron": line, **more}, kind)


def test_the_end_of_the_calendar_is_the_end():
    line = CronLine("0 0 1 1 *", "UTC")

    assert line.upcoming(ms("9998-06-01T00:00:00"), 5) == [ms("9999-01-01T00:00:00")]


fields = st.sampled_from(
    [
        "*",
        "*/7",
        "0",
        "1-3",
        "2,30",
        "L",
        "LW",
        "1#2",
        "5L",
        "MON",
        "JAN",
        "60",
        "*/0",
        "x",
        "1/2",
        "-",
        "#",
    ]
)


@settings(deadline=None)
@given(st.lists(fields, min_size=4, max_size=7).map(" ".join) | st.text(max_size=20))
def test_any_text_is_a_line_that_fires_in_order_or_is_refused(text):
    try:
        line = CronLine(text, BERLIN)
    except InvalidRequest:
        return
    begin = ms("2026-03-01T00:00:00")

    found = line.upcoming(begin, 5)

    assert found == sorted(set(found))
    assert all(moment > begin and moment % 1_000 == 0 for moment in found)
    assert line.in_words


@settings(deadline=None)
@given(
    line=st.sampled_from(
        ["30 2 * * *", "0 0 * * *", "*/7 * * * *", "0,30 1,2,3 * * *", "59 23 * * 0", "5 */2 * * *"]
    ),
    zone=st.sampled_from(
        [BERLIN, "UTC", "America/New_York", "America/Havana", "Asia/Kathmandu", "Africa/Casablanca"]
    ),
    begin=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    hours=st.integers(0, 72),
    count=st.integers(1, 20),
)
@example(
    line="30 2 * * *",
    zone=BERLIN,
    begin=datetime(2026, 10, 25, 0, 10, tzinfo=UTC),
    hours=1,
    count=1,
)
def test_the_latest_are_the_last_of_those_that_came(line, zone, begin, hours, count):
    begin_ms = int(begin.timestamp()) * 1_000
    until_ms = begin_ms + int(timedelta(hours=hours).total_seconds()) * 1_000
    found = CronLine(line, zone)

    came = [moment for moment in found.upcoming(begin_ms, 700) if moment <= until_ms]

    assert found.latest(after_ms=begin_ms, until_ms=until_ms, count=count) == came[-count:]
