"""Messages that a group gives up: counted by their cause, and logged, each once and within
limits.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from delivery.leases.given_up import Cause
from delivery.settle import given_up
from storage.errors import StorageFull
from tests.support.delivery import GROUP, House, in_house, rules, with_house

LAST_AT_ONCE = rules(max_attempts=1)
EVENTS = ("message_dead_lettered", "message_discarded", "messages_given_up")


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    with capture_logs() as captured:
        yield captured


def noted(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] in EVENTS]


def counted(house: House) -> tuple[dict[Cause, int], int]:
    leases = house.delivery.table.group(GROUP)
    return dict(leases.dead_lettered), leases.discarded


@with_house(given=LAST_AT_ONCE)
async def test_a_message_that_has_used_up_its_attempts_is_a_warning_by_its_names(house, lines):
    await house.send("a", "b")
    (a, _) = await house.receive()
    await house.nack(a, reason="the name of a customer")
    await house.pass_time(1_100)

    assert noted(lines) == [
        {
            "event": "message_dead_lettered",
            "log_level": "warning",
            "group": GROUP,
            "topic": "orders",
            "message_id": name,
            "attempts": 1,
            "reason": "exhausted",
        }
        for name in ("a", "b")
    ]
    assert counted(house) == ({Cause.EXHAUSTED: 2}, 0)


@with_house(given=rules(max_attempts=2, backoff_ms=(100,)))
async def test_a_retry_is_logged_with_its_own_topic_and_once(house, lines):
    await house.send("a")
    await house.nack(*await house.receive())
    assert noted(lines) == []
    await house.pass_time(200)
    await house.nack(*await house.receive())
    await house.pass_time(20_000)

    (line,) = noted(lines)
    assert (line["topic"], line["message_id"], line["attempts"]) == ("orders", "a", 2)


@with_house()
async def test_a_message_that_a_consumer_gives_up_is_no_warning(house, lines):
    await house.send("a")
    await house.give_up(*await house.receive(), reason="no such customer")

    (line,) = noted(lines)
    assert (line["log_level"], line["reason"]) == ("info", "requested")
    assert counted(house) == ({Cause.REQUESTED: 1}, 0)


@with_house(given=rules(max_attempts=1, dead_letter=False))
async def test_a_message_that_is_dropped_is_counted_by_itself(house, lines):
    await house.send("a")
    await house.nack(*await house.receive())

    (line,) = noted(lines)
    assert (line["event"], line["log_level"]) == ("message_discarded", "warning")
    assert counted(house) == ({}, 1)


@with_house(given=LAST_AT_ONCE)
async def test_a_message_that_could_not_be_moved_is_neither_counted_nor_logged(house, lines):
    await house.send("a")
    (a,) = await house.receive()
    append = house.store.append

    async def full(*_, **__):
        raise StorageFull("no room")

    house.store.append = full
    with pytest.raises(StorageFull):
        await house.nack(a)

    assert (noted(lines), counted(house)) == ([], ({}, 0))
    house.store.append = append


@with_house(given=LAST_AT_ONCE)
async def test_a_flood_has_a_line_for_the_first_ones_and_one_for_the_number_of_the_others(
    house, lines
):
    most = given_up._LINES
    names = [f"m{number}" for number in range(most + 30)]
    await house.send(*names)
    await house.nack(*await house.receive())

    assert [line["message_id"] for line in noted(lines)] == names[:most]
    lines.clear()
    await house.pass_time(9_000)
    assert noted(lines) == []
    await house.pass_time(1_100)
    assert noted(lines) == [
        {
            "event": "messages_given_up",
            "log_level": "warning",
            "group": GROUP,
            "reason": "exhausted",
            "messages": 30,
        }
    ]
    assert counted(house) == ({Cause.EXHAUSTED: most + 30}, 0)

    lines.clear()
    await house.send("later")
    await house.nack(*await house.receive())
    assert [line["message_id"] for line in noted(lines)] == ["later"]


@with_house(given=LAST_AT_ONCE)
async def test_a_service_that_stops_says_how_many_had_no_line(house, lines):
    await house.send(*[f"m{number}" for number in range(given_up._LINES + 1)])
    await house.nack(*await house.receive())
    lines.clear()
    await house.delivery.drain()

    assert [line["messages"] for line in noted(lines)] == [1]


def test_counters_begin_at_zero_after_a_restart_and_the_dead_letters_are_there(lines):
    async def first(house: House) -> None:
        await house.send("a")
        await house.nack(*await house.receive())
        assert counted(house) == ({Cause.EXHAUSTED: 1}, 0)
        lines.clear()

    async def second(house: House) -> None:
        assert (counted(house), noted(lines)) == (({}, 0), [])
        assert len(await house.dead_letters()) == 1

    in_house(first, second, given=LAST_AT_ONCE)
