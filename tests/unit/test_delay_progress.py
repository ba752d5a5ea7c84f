"""What a broker is told of the delay queues, and what it has told us."""

from random import Random

import pytest

from scheduler.progress import Progress
from scheduler.scheduled_message import TIMER_QUEUE, place_of
from storage.files import durable
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.delay_progress import (
    LevelOffsets,
    decode_levels,
    decode_timercheck,
    encode_levels,
    encode_timercheck,
    is_our_timercheck,
)
from storage.message import QueueId
from tests.support.schedules import House, in_house, with_house
from tests.support.simulation import ROOT

LEVEL_1 = QueueId(SCHEDULE_TOPIC, 0)
BY_A_BROKER = b"""{
	"dataVersion":{
		"counter":17,
		"stateVersion":0,
		"timestamp":1795254715636
	},
	"offsetTable":{1:15,2:7,18:0
	}
}"""
FILE = ROOT / "config" / "delayOffset.json"


# --------------------------------------------------------------------------------------------------
# the files


def test_the_file_of_a_broker_is_read_and_written_byte_for_byte():
    found = decode_levels(BY_A_BROKER)

    assert found == LevelOffsets({1: 15, 2: 7, 18: 0}, 17, is_ours=False)
    assert encode_levels(found, now_ms=1795254715636) == BY_A_BROKER


def test_ours_can_be_told_from_a_brokers():
    ours = LevelOffsets({3: 4_000_000_000}, 5, is_ours=True)

    assert decode_levels(encode_levels(ours, now_ms=0)) == ours


def test_quoted_keys_and_an_empty_table_are_read_too():
    assert decode_levels(b'{"offsetTable":{"1":5,"12":6}}') == LevelOffsets(
        {1: 5, 12: 6}, 0, is_ours=False
    )
    assert decode_levels(b'{"offsetTable":{}}') == LevelOffsets({}, 0, is_ours=False)


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"\xff\x00", BY_A_BROKER[:-1], b'{"offsetTable":[1]}', b"null"]
)
def test_what_is_no_such_file_says_nothing(raw):
    assert decode_levels(raw) is None


def test_a_timercheck_has_a_brokers_layout():
    raw = encode_timercheck(9, counter=55, now_ms=0x1A1FD84FFFE)

    assert len(raw) == 4096
    assert raw[:56].hex(" ", 8) == (
        "0000000000000000 0000000000000000 0000000000000009 0000000000000009 0000000000000000 "
        "000001a1fd84fffe 0000000000000037"
    )
    assert decode_timercheck(raw) == 9


def test_a_timercheck_that_a_broker_has_changed_since_is_not_ours():
    ours = encode_timercheck(9, counter=55, now_ms=7, queue_end=12, read_ms=5_000)

    assert is_our_timercheck(ours)

    for at in range(56):
        assert not is_our_timercheck(ours[:at] + bytes([ours[at] ^ 1]) + ours[at + 1 :])


def test_a_timercheck_of_an_earlier_version_is_ours():
    assert is_our_timercheck(encode_timercheck(9, counter=1, now_ms=7)[:56].ljust(4096, b"\0"))


def test_a_timercheck_that_is_not_whole_says_nothing():
    assert decode_timercheck(b"") is None
    assert decode_timercheck(encode_timercheck(9, counter=55, now_ms=0)[:55]) is None


# --------------------------------------------------------------------------------------------------
# what is done


def test_what_is_done_in_any_order_is_known_and_the_first_that_is_not():
    progress = Progress()
    order = [*range(5_000)]
    Random(7).shuffle(order)
    done: set[int] = set()

    for queue_offset in order:
        progress.note_done([place_of(LEVEL_1, queue_offset)])
        done.add(queue_offset)
        if queue_offset % 100 == 0:
            assert progress.done_before(LEVEL_1) == next(
                one for one in range(5_001) if one not in done
            )
            assert all(
                progress.is_done(place_of(LEVEL_1, one)) == (one in done)
                for one in range(0, 6_000, 7)
            )
    assert progress.done_before(LEVEL_1) == 5_000
    assert progress.done_before(TIMER_QUEUE) == 0


def test_what_was_saved_is_the_same_when_it_is_restored():
    progress, restored = Progress(), Progress()
    progress.note_done(
        [place_of(LEVEL_1, one) for one in [*range(1_030), *range(1_031, 4_096), 9_000]]
    )
    progress.note_done_before(TIMER_QUEUE, 77)

    restored.restore(progress.dump())

    for one in (progress, restored):
        assert one.done_before(LEVEL_1) == 1_030
        assert one.is_done(place_of(LEVEL_1, 9_000))
        assert not one.is_done(place_of(LEVEL_1, 9_001))
        one.note_done([place_of(LEVEL_1, 1_030)])
        assert one.done_before(LEVEL_1) == 4_096
        assert one.done_before(TIMER_QUEUE) == 77


def test_many_that_are_done_behind_one_that_waits_take_next_to_nothing():
    progress = Progress()

    progress.note_done(place_of(LEVEL_1, one) for one in range(1, 200_000))

    assert progress.done_before(LEVEL_1) == 0
    assert len(progress.dump()) < 2_000


# --------------------------------------------------------------------------------------------------
# in a store


def read_file(house: House) -> LevelOffsets | None:
    raw = durable.read_whole(house.world.disk, FILE)
    return None if raw is None else decode_levels(raw)


def write_file(house: House, offsets: dict[int, int]) -> None:
    """A broker has had the store meanwhile."""
    raw = encode_levels(LevelOffsets(offsets, 99, is_ours=False), now_ms=house.now_ms)
    durable.replace(house.world.disk, FILE, raw, scratch=ROOT / "making")


def test_the_offset_is_that_of_the_first_that_waits_whatever_was_delivered_or_cancelled_behind_it():
    async def life(house):
        await house.put_off("a", "b", "c", "d", delay_ms=1_000)
        await house.service.cancel("sch_a")
        await house.service.move("sch_b", house.now_ms + 60_000)
        assert await house.deliver(1_000) == ["c", "d"]
        await house.store.aclose()

        assert read_file(house).offsets == {1: 1}

    async def next_life(house):
        await house.deliver(60_000)  # what is so long overdue comes with the next sweep
        assert await house.deliver(1_000) == ["c", "d", "b"]
        await house.store.aclose()

        assert read_file(house).offsets == {1: 4}

    in_house(life, next_life)


@with_house()
async def test_a_file_is_written_within_twenty_seconds_of_a_delivery(house):
    await house.put_off("a", delay_ms=1_000)
    await house.put_off("b", due_ms=house.now_ms + 1_500)
    await house.deliver(2_000)
    await house.deliver(20_000)

    assert read_file(house).offsets == {1: 1}
    assert (
        durable.read_whole(house.world.disk, ROOT / "config" / "timercheck")[16:24]
        == bytes(7) + b"\x01"
    )


def test_what_a_broker_has_delivered_meanwhile_is_not_delivered_again():
    async def ours(house):
        await house.put_off("a", "b", "c", delay_ms=1_000)
        await house.store.aclose()
        write_file(house, {1: 2})

    async def ours_again(house):
        assert await house.deliver(2_000) == ["c"]
        await house.store.aclose()
        assert read_file(house).offsets == {1: 3}
        assert read_file(house).is_ours

    in_house(ours, ours_again, ours_again)


def test_a_file_of_ours_is_no_reason_to_leave_something_out():
    """The log may have been cut by hand behind its back."""

    async def life(house):
        await house.put_off("a", delay_ms=1_000)
        await house.store.aclose()
        raw = encode_levels(LevelOffsets({1: 1}, 1, is_ours=True), now_ms=0)
        durable.replace(house.world.disk, FILE, raw, scratch=ROOT / "making")

    async def next_life(house):
        assert await house.deliver(2_000) == ["a"]

    in_house(life, next_life)


def test_a_broker_that_claims_more_than_there_is_is_not_believed_of_what_comes():
    async def life(house):
        await house.store.aclose()
        write_file(house, {1: 50, 18: 3, 77: 5})

    async def next_life(house):
        await house.put_off("a", delay_ms=1_000)
        assert await house.deliver(2_000) == ["a"]

    in_house(life, next_life)


def test_the_wheel_of_a_broker_is_removed_when_the_first_progress_is_written():
    async def life(house):
        durable.replace(
            house.world.disk, ROOT / "timerwheel", b"a broker's", scratch=ROOT / "making"
        )

    async def next_life(house):
        await house.put_off("a", due_ms=house.now_ms + 1_500)
        await house.deliver(2_000)
        await house.store.aclose()

        raw = durable.read_whole(house.world.disk, ROOT / "config" / "timercheck")
        assert decode_timercheck(raw) == 1
        assert is_our_timercheck(raw)
        assert not house.world.disk.exists(ROOT / "timerwheel")

    in_house(life, next_life)
