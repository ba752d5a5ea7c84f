"""The walk over a log: what is whole is found, what is not stops it, and numpy finds what judging
one by one finds.

Every walk here is done both ways (`tests/support/logs.py`) and must come to the same.
"""

import struct

import pytest

from storage.formats import record as records
from storage.formats import scan, unit
from storage.formats.scan import Halt, Stop, Unit
from storage.message import QueueId, StoredMessage
from tests.support.builders import encoded, message, messages
from tests.support.logs import BROKER_HOST, Log, broker_record, reordered, step_at, walk
from txn import half_message
from txn.checkback_plan import CheckbackPolicy
from txn.half_message import Facts, Op
from txn.states import Resolver, TxnState

SEGMENT = 8192
MAGIC = records.MAGIC_V1.to_bytes(4, "big")


# --------------------------------------------------------------------------------------------------
# what is found


@pytest.mark.parametrize(
    "first_offset", [0, 8, SEGMENT, 5 * SEGMENT + 1024, 1 << 44, (1 << 44) - 1024, 3 << 44]
)
def test_every_record_of_every_unit_is_found_in_order(first_offset):
    log = Log(first_offset).ours(1).ours(3).ours(1).ours(7)

    found = walk(
        log.filled(first_offset + SEGMENT), first_offset, segment_end=first_offset + SEGMENT
    )

    assert (found.record_offsets, found.record_bytes) == (log.places, log.sizes)
    assert (found.end, found.stop) == (log.end, Stop.EMPTY)


def test_the_walk_begins_where_it_is_told_to():
    log = Log().ours(2).ours(1).ours(3)
    begin = log.borders[1]

    found = walk(log.filled(SEGMENT), begin=begin, segment_end=SEGMENT)

    assert found.record_offsets == log.places[2:]


@pytest.mark.parametrize("behind", [0, 1])
def test_the_epoch_and_the_synced_position_of_the_last_unit_are_told(behind):
    log = (
        Log()
        .ours(epoch=2, synced_offset=5)
        .brokers(b"x")
        .ours(2, epoch=2, synced_offset=70)
        .ours(epoch=4, synced_offset=900)
    )
    for _ in range(behind):
        log.brokers(b"y")

    found = walk(log.filled(SEGMENT), segment_end=SEGMENT)

    assert (found.epoch, found.synced_offset) == (4, 900)


def test_where_there_is_no_unit_the_given_epoch_stays():
    found = walk(bytes(SEGMENT), segment_end=SEGMENT, epoch=3)

    assert (found.record_offsets, found.epoch, found.synced_offset, found.stop) == (
        [],
        3,
        0,
        Stop.EMPTY,
    )


def test_records_of_a_broker_between_our_units_are_found_and_they_are_not_aligned():
    log = (
        Log()
        .brokers(b"a", b"bb", b"ccc")
        .ours(2)
        .brokers(b"d")
        .ours(1)
        .ours(3)
        .brokers(b"e", b"f" * 300)
        .ours(1)
    )
    assert any(place % 8 for place in log.places)

    found = walk(log.filled(SEGMENT), segment_end=SEGMENT)

    assert (found.record_offsets, found.record_bytes) == (log.places, log.sizes)
    assert (found.end, found.stop, found.epoch) == (log.end, Stop.EMPTY, 1)


@pytest.mark.parametrize("length", range(8))
def test_a_broker_record_of_any_length_may_lie_before_and_behind_our_units(length):
    log = Log().brokers(b"x" * length).ours(2).brokers(b"y" * (7 - length)).ours(1)

    found = walk(log.filled(SEGMENT), segment_end=SEGMENT)

    assert found.record_offsets == log.places
    assert all(
        (place + size) % 8 == 0 for place, size in zip(log.places[1:3], log.sizes[1:3], strict=True)
    )


def test_a_broker_record_with_ipv6_hosts_and_one_of_version_2_are_found():
    log = Log().brokers(
        b"six", sys_flag=0x30, born_host=bytes(range(20)), host=bytes(range(20, 40))
    )
    log.brokers(b"two", magic=records.MAGIC_V2, topic="%RETRY%" + "g" * 200).ours(1)

    found = walk(log.filled(SEGMENT), segment_end=SEGMENT)

    assert found.record_offsets == log.places


def test_our_version_2_records_are_found_among_others():
    long = QueueId("%RETRY%" + "g" * 250, 0)
    log = (
        Log()
        .ours(1)
        .ours([message(), message(queue=long), message()])
        .ours(messages(2, queue=long))
    )

    found = walk(log.filled(SEGMENT), segment_end=SEGMENT)

    assert (found.record_offsets, found.record_bytes) == (log.places, log.sizes)


# -------------------------------------------------------------------------------------------------
# how a file ends


def test_an_end_of_file_record_ends_the_file():
    log = Log().ours(2).end_of_file(SEGMENT)

    found = walk(log.filled(SEGMENT), segment_end=SEGMENT)

    assert (found.end, found.stop, found.reason) == (log.borders[-1], Stop.END_OF_FILE, "")


def test_what_lies_behind_an_end_of_file_record_is_not_looked_at():
    log = Log().ours(2).end_of_file(SEGMENT)
    rest = encoded(messages(1), first_offset=log.end).data

    found = walk((log.data + rest).ljust(SEGMENT, b"\0"), segment_end=SEGMENT)

    assert (found.end, found.stop) == (log.borders[-1], Stop.END_OF_FILE)


def test_every_flipped_bit_of_an_end_of_file_record_is_noticed():
    log = Log().ours(2).end_of_file(SEGMENT)
    window = log.filled(SEGMENT)
    for bit in range(64):
        found = walk(flipped(window, log.borders[-1] * 8 + bit), segment_end=SEGMENT)

        assert (found.end, found.stop) == (log.borders[-1], Stop.DAMAGED)


@pytest.mark.parametrize("left", range(9))
def test_a_file_that_ends_without_an_end_of_file_record_is_damaged(left):
    log = Log().ours(2)

    found = walk(log.filled(log.end + left), segment_end=log.end + left)

    # Eight bytes of zeros are where a unit could begin; fewer are not, and no writer of ours leaves
    # them.
    assert found.stop is (Stop.EMPTY if left == 8 else Stop.DAMAGED)
    assert found.record_offsets == log.places


@pytest.mark.parametrize("byte", range(8))
def test_anything_but_eight_zeros_is_not_empty(byte):
    window = bytes(byte) + b"\1" + bytes(SEGMENT - byte - 1)

    assert walk(window, segment_end=SEGMENT).stop is Stop.DAMAGED


@pytest.mark.parametrize("length", range(20))
def test_a_window_of_zeros_says_that_it_is_empty_or_that_it_ends(length):
    assert walk(bytes(length), segment_end=SEGMENT).stop is (
        Stop.EMPTY if length >= 8 else Stop.WINDOW_END
    )
    assert walk(bytes(length), segment_end=length).stop is (
        Stop.EMPTY if length >= 8 else Stop.DAMAGED
    )


# --------------------------------------------------------------------------------------------------
# torn and cut off

MIXED = (
    Log(SEGMENT)
    .ours(2)
    .brokers(b"odd")
    .ours(1)
    .ours(3)
    .brokers(b"even", b"odd again")
    .ours(1)
    .ours(2)
)


@pytest.mark.parametrize("begin", MIXED.borders)
def test_a_window_that_ends_anywhere_holds_the_whole_units_before_its_end_and_asks_for_more(begin):
    """Also of a window that begins at any unit, on its word border as recovery reads it."""
    at = begin - begin % 8
    for end in range(begin, MIXED.end + 1):
        window = MIXED.data[at - SEGMENT : end - SEGMENT]
        found = walk(window, at, begin=begin, segment_end=2 * SEGMENT)

        whole = max(border for border in MIXED.borders if border <= end)
        assert (found.end, found.stop) == (whole, Stop.WINDOW_END)
        places, sizes = MIXED.records_before(whole)
        skipped = len(MIXED.records_before(begin)[0])
        assert (found.record_offsets, found.record_bytes) == (places[skipped:], sizes[skipped:])


@pytest.mark.parametrize("shift", range(8))
def test_a_window_may_begin_off_the_word_border_too(shift):
    log = Log().ours(2).ours(1).brokers(b"x").ours(3)
    begin = log.borders[1]

    found = walk(
        log.filled(SEGMENT)[begin - shift :], begin - shift, begin=begin, segment_end=SEGMENT
    )

    assert found.record_offsets == log.places[2:]


def test_a_log_torn_at_any_byte_ends_with_its_last_whole_unit():
    log = (
        Log(SEGMENT)
        .brokers(b"odd")
        .ours(2)
        .ours(1)
        .ours([message(b""), message(tag="t"), message()])
        .ours(1)
    )
    window = log.filled(2 * SEGMENT)
    for kept in range(log.borders[1] - SEGMENT, len(log.data) + 1):
        found = walk(window[:kept].ljust(SEGMENT, b"\0"), SEGMENT, segment_end=2 * SEGMENT)

        end = SEGMENT + len(window[:kept].rstrip(b"\0"))
        whole = max(border for border in log.borders if border <= SEGMENT + kept)
        assert found.end == whole
        assert (found.record_offsets, found.record_bytes) == log.records_before(whole)
        assert found.stop is (Stop.DAMAGED if end > whole else Stop.EMPTY)


def test_a_torn_record_of_a_broker_is_noticed_up_to_its_properties_which_rocketmq_does_not_protect():
    log = Log().ours(1).brokers(b"a broker's", properties=b"TAGS\x01tag\x02")
    begin = log.borders[1]
    for kept in range(begin, log.end - len(b"TAGS\x01tag\x02")):
        found = walk(log.data[:kept].ljust(SEGMENT, b"\0"), segment_end=SEGMENT)

        assert found.end == begin


def test_a_unit_of_which_any_sector_is_missing_ends_the_log():
    log = Log().ours(1).ours(messages(12, body_bytes=300)).ours(1)
    _, begin, end, _ = log.borders
    window = log.filled(SEGMENT)
    for sector in range(begin // 512, (end - 1) // 512 + 1):
        low, high = max(begin, sector * 512), min(end, (sector + 1) * 512)
        holed = window[:low] + bytes(high - low) + window[high:]

        assert walk(holed, segment_end=SEGMENT).end == begin


# --------------------------------------------------------------------------------------------------
# flipped bits


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def a_half() -> list:
    facts = Facts(message_count=2, policy=CheckbackPolicy(), business_key="order-7")
    return half_message.wrap_halves(
        [message(key="k", tag="t"), message(properties={"a": ""})],
        transaction_id="txn_1",
        producer_group="shop",
        facts=facts,
    )


def a_decision() -> list:
    half = a_half()[0]
    fields = {name: getattr(half, name) for name in half.__struct_fields__}
    stored = StoredMessage(**fields, queue_offset=12, stored_at_ms=5, log_offset=4096)
    op = Op((12,), "txn_1", TxnState.COMMITTED, Resolver.CHECK, 1_700_000_000_000, "because", (3,))
    return [half_message.unwrap_final(stored), half_message.op_message(op)]


KINDS = {
    "one record": [message(key="key", tag="tag", properties={"color": "red"})],
    "three records": messages(3, body_bytes=5),
    "an empty body": [message(b"")],
    "version 2": [message(queue=QueueId("%RETRY%" + "g" * 130, 1))],
    "both versions": [message(), message(queue=QueueId("t" * 128, 1))],
    "a begin": a_half(),
    "a decision": a_decision(),
    "a rollback": [
        half_message.op_message(
            Op((1, 2), "txn_1", TxnState.ROLLED_BACK, Resolver.PRODUCER, 5, None, ())
        )
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_of_a_unit_is_noticed_and_what_lies_before_it_is_kept(kind):
    log = Log().ours(1).ours(KINDS[kind]).ours(1)
    window = log.filled(2048 if log.end <= 2040 else 4096)
    _, begin, end, _ = log.borders
    for bit in range(begin * 8, end * 8):
        found = walk(flipped(window, bit), segment_end=len(window))

        assert (found.end, found.stop) == (begin, Stop.DAMAGED), (
            f"byte {bit // 8 - begin} of the unit, bit {bit % 8}"
        )
        assert found.reason


@pytest.mark.parametrize("kind", ["one record", "three records"])
def test_every_flipped_bit_of_the_first_unit_of_a_walk_is_noticed(kind):
    log = Log().ours(1).ours(KINDS[kind]).ours(1)
    window = log.filled(2048)
    _, begin, end, _ = log.borders
    for bit in range(begin * 8, end * 8):
        found = walk(flipped(window, bit), begin=begin, segment_end=len(window))

        assert (found.end, found.stop) == (begin, Stop.DAMAGED)


@pytest.mark.parametrize("kind", ["one record", "three records"])
def test_every_flipped_bit_of_a_unit_behind_a_brokers_record_is_noticed(kind):
    log = Log().brokers(b"odd").ours(KINDS[kind]).ours(1)
    window = log.filled(2048)
    _, begin, end, _ = log.borders
    for bit in range(begin * 8, end * 8):
        found = walk(flipped(window, bit), segment_end=len(window))

        assert (found.end, found.stop) == (begin, Stop.DAMAGED)


def test_a_flipped_bit_in_the_body_or_the_lengths_of_a_brokers_record_is_noticed():
    """What RocketMQ itself checks; it does not protect the other fields."""
    raw = broker_record(0, b"a body of a broker")
    body_at = raw.index(b"a body")
    protected = [*range(12), *range(28, 36), *range(84, body_at + 19), body_at + 25, body_at + 26]
    for byte in protected:
        for bit in range(8):
            step = step_at(flipped(raw, byte * 8 + bit).ljust(1024, b"\0"))

            assert isinstance(step, Halt), f"byte {byte}, bit {bit}"
            assert step.stop is Stop.DAMAGED


# -------------------------------------------------------------------------------- bytes in bodies
# that look like a log


@pytest.mark.parametrize("shift", range(8))
def test_magic_numbers_inside_bodies_are_no_records(shift):
    body = bytes(shift) + (struct.pack(">i", 96) + MAGIC) * 40
    log = (
        Log()
        .ours([message(body)])
        .ours([message(body), message(), message(body)])
        .brokers(body)
        .ours([message(body)])
    )

    found = walk(log.filled(SEGMENT), segment_end=SEGMENT)

    assert (found.record_offsets, found.stop) == (log.places, Stop.EMPTY)


@pytest.mark.parametrize("shift", range(8))
@pytest.mark.parametrize("seal", [b"", unit.SEAL_START + b"00000000\x02"])
def test_unit_items_inside_bodies_end_no_record(seal, shift):
    item = unit.encode_item(unit.UnitItem(0, 0, 1, 1))
    body = bytes(shift) + (item + seal) * 5
    log = Log().ours(2).ours([message(body)]).ours([message(), message(body)])
    log.brokers(body).ours([message(body)]).ours(1)

    found = walk(log.filled(SEGMENT), segment_end=SEGMENT)

    assert (found.record_offsets, found.stop) == (log.places, Stop.EMPTY)


@pytest.mark.parametrize("size", [-8, 0, 88, 91, 96, 104, 4096, 0x7FFFFFF8])
def test_a_body_full_of_starts_of_records_of_one_size_is_a_body(size):
    for shift in range(8):
        body = bytes(shift) + (struct.pack(">i", size) + MAGIC) * 60
        log = Log().ours([message(body)]).ours(1).ours([message(), message(body)]).ours(1)

        assert walk(log.filled(SEGMENT), segment_end=SEGMENT).record_offsets == log.places


@pytest.mark.parametrize("size", [-8, 8, 88, 91, 96, 104, 4096, 0x7FFFFFF8])
def test_starts_of_records_behind_our_units_that_lead_nowhere_are_damage(size):
    log = Log().ours(2).ours(1)
    starts = (struct.pack(">i", size) + MAGIC) * 60

    found = walk((log.data + starts).ljust(SEGMENT, b"\0"), segment_end=SEGMENT)

    assert (found.record_offsets, found.stop) == (log.places, Stop.DAMAGED)


def test_a_whole_unit_that_a_sender_made_for_its_very_place_is_a_body():
    """Whoever knows where the log will be next can forge everything, the place too; it stays inside
    a body.
    """
    for shift in range(8):
        log = Log().ours(1)
        forged_at = log.end + 88 + shift
        forged = encoded([message(b"forged")], first_offset=forged_at, epoch=9).data
        log.ours([message(bytes(shift) + forged)]).ours(1)
        assert log.data[forged_at : forged_at + len(forged)] == forged

        found = walk(log.filled(SEGMENT), segment_end=SEGMENT)

        assert (found.record_offsets, found.epoch) == (log.places, 1)


# -------------------------------------------------------------------------------- units that do not
# hold together


def test_a_unit_whose_last_record_is_missing_is_none():
    log = Log().ours(1).ours(3)
    window = log.data[: log.places[3]] + bytes(SEGMENT - log.places[3])

    found = walk(window, segment_end=SEGMENT)

    assert (found.end, found.stop, found.reason) == (
        log.borders[1],
        Stop.DAMAGED,
        "record 3 of the 3 of the unit is none",
    )


def changed(log: Log, begin: int, end: int, raw: bytes) -> bytes:
    """A segment with a log whose last unit has other bytes in [begin, end), under a right seal."""
    digits_at = log.end - len("00000000\x02")
    last = log.borders[-2]
    made = log.data[last:begin] + raw + log.data[end:digits_at]
    return (log.data[:last] + made + unit.seal_of(made)).ljust(SEGMENT, b"\0")


def test_a_unit_with_a_record_that_is_too_short_for_one_is_none_though_its_seal_is_right():
    log = Log().ours(1).ours(3)
    begin, second, third = log.borders[1], *log.places[2:]
    item = log.data[third - unit.UNIT_ITEM_BYTES : third]
    short = struct.pack(">i", 8 + len(item)) + MAGIC + item

    found = walk(changed(log, second, third, short), segment_end=SEGMENT)

    assert (found.end, found.reason) == (begin, "record 2 of the 3 of the unit is none")


@pytest.mark.parametrize("by", [-8, 1, 8, 1 << 20, -1 << 31])
def test_a_unit_with_a_record_of_another_length_is_none_though_its_seal_is_right(by):
    log = Log().ours(1).ours(3)
    begin, second = log.borders[1], log.places[2]
    length = struct.pack(">i", max(log.sizes[2] + by, -1 << 31))

    found = walk(changed(log, second, second + 4, length), segment_end=SEGMENT)

    assert (found.end, found.stop) == (begin, Stop.DAMAGED)


@pytest.mark.parametrize("number", range(3))
def test_a_unit_with_a_record_of_another_magic_is_none_though_its_seal_is_right(number):
    log = Log().ours(1).ours(3)
    magic_at = log.places[1 + number] + 4
    magic = bytes([MAGIC[0] ^ 1]) + MAGIC[1:]

    found = walk(changed(log, magic_at, magic_at + 4, magic), segment_end=SEGMENT)

    assert (found.end, found.stop) == (log.borders[1], Stop.DAMAGED)


def test_a_record_of_another_unit_does_not_complete_one():
    log = Log().ours(1).ours(3)
    begin, third = log.borders[1], log.places[3]
    other = encoded(messages(1), first_offset=third).data

    found = walk((log.data[:third] + other).ljust(SEGMENT, b"\0"), segment_end=SEGMENT)

    assert (found.end, found.reason) == (
        begin,
        "record 3 of the 3 of the unit does not belong to it",
    )


def test_a_unit_at_the_end_of_the_file_whose_rest_does_not_fit_is_damaged():
    log = Log().ours(3)
    for segment_end in range(log.places[1], log.end, 8):
        found = walk(log.data[:segment_end], segment_end=segment_end)

        assert (found.end, found.stop) == (0, Stop.DAMAGED)


def test_two_units_whose_records_are_exchanged_are_noticed():
    log = Log().ours(messages(2)).ours(messages(2))
    a, b, c, d = log.places
    exchanged = log.data[a:b] + log.data[d : log.end] + log.data[c:d] + log.data[b:c]

    assert walk(exchanged.ljust(SEGMENT, b"\0"), segment_end=SEGMENT).end == 0


def test_a_unit_in_another_place_than_its_own_is_damaged_though_its_seal_is_right():
    elsewhere = encoded(messages(2), first_offset=2048).data
    log = Log().ours(3)

    found = walk((log.data + elsewhere).ljust(SEGMENT, b"\0"), segment_end=SEGMENT)

    assert (found.end, found.stop) == (log.end, Stop.DAMAGED)
    assert found.reason == "the record says that it lies at log offset 2048"


# ------------------------------------------------------------------------------------------------
# ghosts, epochs


def test_units_of_an_earlier_life_behind_the_end_stop_the_walk():
    ghosts = Log().ours(1, epoch=2).ours(2, epoch=2).ours(1, epoch=2)
    alive = Log().ours(1, epoch=3)
    assert alive.end == ghosts.borders[1]

    found = walk((alive.data + ghosts.data[alive.end :]).ljust(SEGMENT, b"\0"), segment_end=SEGMENT)

    assert (found.end, found.stop, found.epoch) == (alive.end, Stop.DAMAGED, 3)
    assert found.reason == "the unit is of epoch 2, before it lies one of 3"


def test_a_unit_below_the_epoch_of_what_came_before_the_window_stops_the_walk():
    log = Log().ours(1, epoch=6).ours(1, epoch=7)

    assert walk(log.filled(SEGMENT), segment_end=SEGMENT, epoch=6).record_offsets == log.places
    assert walk(log.filled(SEGMENT), segment_end=SEGMENT, epoch=7).record_offsets == []


def test_records_of_a_broker_do_not_end_an_epoch():
    log = Log().ours(1, epoch=3).brokers(b"x").ours(1, epoch=2)

    assert walk(log.filled(SEGMENT), segment_end=SEGMENT).end == log.borders[2]


@pytest.mark.parametrize("epoch", [0, 9, 10, 0xF, 0xFF, 0x1F9A, 0xFFFFFFFF])
def test_every_epoch_is_compared_as_a_number(epoch):
    log = Log().ours(1, epoch=epoch).ours(2, epoch=epoch)

    assert walk(log.filled(SEGMENT), segment_end=SEGMENT, epoch=epoch).record_offsets == log.places
    if epoch < 0xFFFFFFFF:
        assert walk(log.filled(SEGMENT), segment_end=SEGMENT, epoch=epoch + 1).end == 0


# --------------------------------------------------------------------------------------------------
# a broker's copies


@pytest.mark.parametrize("host", [BROKER_HOST, records.HOST], ids=["its host", "our host"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_a_broker_made_of_a_record_of_ours_is_whole(kind, host):
    original = Log(4096).ours(KINDS[kind])
    for place, size in zip(original.places, original.sizes, strict=True):
        raw = original.data[place - 4096 : place - 4096 + size]
        copy = reordered(raw, offset=8192, host=host)
        unchanged = records.encode(
            records.decode(raw)._replace(physical_offset=8192, store_host=host)
        )
        for copied in (copy, unchanged):
            step = step_at(copied.ljust(SEGMENT, b"\0"), 8192)

            assert isinstance(step, Unit)
            assert step.records == [(0, len(copied))]
            assert step.item.first_offset == 4096


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_with_our_host_whose_unit_item_is_damaged_is_not_taken_for_a_brokers_record(kind):
    raw = Log(4096).ours(KINDS[kind]).data
    raw = raw[: records.start(raw)[0]]
    copy = reordered(raw, offset=8192, host=records.HOST)
    item_at = copy.index(b"__unit\x01")
    for bit in range(item_at * 8, (item_at + unit.UNIT_ITEM_BYTES) * 8):
        step = step_at(flipped(copy, bit).ljust(SEGMENT, b"\0"), 8192)

        assert step == Halt(Stop.DAMAGED, "the unit item of the record is not intact")


def test_a_record_with_our_host_and_no_unit_item_is_damaged_and_with_a_brokers_it_is_a_brokers():
    assert step_at(broker_record(0, host=records.HOST).ljust(1024, b"\0")) == Halt(
        Stop.DAMAGED, "the unit item of the record is not intact"
    )
    assert isinstance(step_at(broker_record(0, host=BROKER_HOST).ljust(1024, b"\0")), Unit)


def test_copies_lie_between_our_units_and_both_walks_pass_them():
    original = Log().ours([message(tag="t")])
    log = Log().ours(1)
    for host in (BROKER_HOST, records.HOST):
        for padding in range(8):  # so that some of them are aligned as ours are
            copy = reordered(original.data, offset=log.end, host=host)
            record = records.decode(copy)
            copy = records.encode(record._replace(properties=record.properties + b"\x02" * padding))
            log.places.append(log.end)
            log.sizes.append(len(copy))
            log._add(copy)
        log.ours(2)

    found = walk(log.filled(SEGMENT), segment_end=SEGMENT)

    assert (found.record_offsets, found.record_bytes) == (log.places, log.sizes)


# ------------------------------------------------------------------------------------------------
# what the walk costs


class Calls:
    """Counts the calls of a function of the walk, which goes on as it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.count = 0
        function = getattr(scan, name)

        def counted(*arguments: object, **others: object) -> object:
            self.count += 1
            return function(*arguments, **others)

        monkeypatch.setattr(scan, name, counted)


def test_our_units_are_checked_many_at_a_time_whatever_is_in_them(monkeypatch):
    log = Log()
    long = QueueId("t" * 200, 0)
    for number in range(100):
        log.ours([message(bytes([number]) * number, tag="t" * (number % 7))], epoch=1 + number)
        log.ours(messages(2 + number % 3, queue=long), epoch=1 + number)
    judged = Calls(monkeypatch, "judge")

    found = scan.scan(log.filled(1 << 20), 0, begin=0, segment_end=1 << 20)

    assert found.record_offsets.tolist() == log.places
    assert judged.count == 1, "only what ends the run is judged alone"


def test_units_of_one_message_are_checked_in_one_pass(monkeypatch):
    log = Log()
    for number in range(100):
        log.ours([message(bytes([number]) * number)])
    sums = Calls(monkeypatch, "crc32c")

    found = scan.scan(log.filled(1 << 20), 0, begin=0, segment_end=1 << 20)

    assert found.record_offsets.tolist() == log.places
    assert sums.count == 1


@pytest.mark.parametrize("wrong", [(0,), (40,), (99,), (7, 8), (98, 99), tuple(range(3, 90))])
@pytest.mark.parametrize("where", ["first word", "body", "last word of the sum", "seal"])
def test_the_walk_ends_at_the_first_wrong_unit_of_many_that_are_checked_in_one_pass(wrong, where):
    log = Log()
    for number in range(100):
        log.ours([message(bytes([number]) * 100)])
    raw = bytearray(log.filled(1 << 20))
    behind = [*log.places[1:], log.end]
    for number in wrong:
        begin, end = log.places[number], behind[number]
        at = {
            "first word": begin + 8,  # the CRC of the body
            "body": begin + 150,
            "last word of the sum": end - 10,
            "seal": end - 9,
        }[where]
        raw[at] ^= 1

    found = walk(bytes(raw), segment_end=1 << 20)

    assert (found.end, found.stop) == (log.places[wrong[0]], Stop.DAMAGED)


def test_a_seal_of_other_digits_for_the_same_number_is_none():
    log = Log()
    for number in range(100):
        log.ours([message(bytes([number]) * 100)])
    raw = bytearray(log.filled(1 << 20))
    ends = [*log.places[1:], log.end]
    # an upper-case digit, and bytes whose low halves and bit 6 make the same number
    number = next(index for index, end in enumerate(ends) if chr(raw[end - 2]) in "abcdef")
    for other in (raw[ends[number] - 2] ^ 0x20, raw[ends[number] - 2] ^ 0x80):
        changed = bytearray(raw)
        changed[ends[number] - 2] = other

        found = walk(bytes(changed), segment_end=1 << 20)

        assert (found.end, found.stop) == (log.places[number], Stop.DAMAGED)


def test_records_are_only_looked_for_by_their_magic_where_their_items_do_not_lead_to_them(
    monkeypatch,
):
    searches = Calls(monkeypatch, "_candidates")
    log = Log().ours(2).ours(1).ours([message(bytes(3_000))]).ours(5)
    log.ours(messages(2, queue=QueueId("t" * 200, 0)))

    found = scan.scan(log.filled(1 << 16), 0, begin=0, segment_end=1 << 16)

    assert (found.record_offsets.tolist(), searches.count) == (log.places, 0)

    log.ours([message(bytes(at) + unit.UNIT_ITEM_START + b"0") for at in range(8)])
    found = scan.scan(log.filled(1 << 16), 0, begin=0, segment_end=1 << 16)

    assert (found.record_offsets.tolist(), searches.count) == (log.places, 1)


def test_behind_a_brokers_record_the_whole_window_is_only_looked_at_where_a_unit_of_ours_begins(
    monkeypatch,
):
    """Else a log of a broker costs the square of its length: an eighth of its records lie on a word
    border by chance.
    """
    log = Log()
    for number in range(200):
        log.brokers(b"x" * (number % 50))
    log.ours(3).brokers(b"y")
    log.ours(1)
    assert sum(place % 8 == 0 for place in log.places) > 20
    looks = Calls(monkeypatch, "_by_items")

    found = scan.scan(log.filled(1 << 16), 0, begin=0, segment_end=1 << 16)

    assert found.record_offsets.tolist() == log.places
    assert looks.count <= 2


# --------------------------------------------------------------------------------------------------
# units_between


def items_between(
    log: Log, begin: int, end: int, *, epoch: int = 0, window_offset: int = 0
) -> list[unit.UnitItem]:
    window = log.filled(SEGMENT)[window_offset:]
    return list(
        scan.units_between(window, window_offset, begin, end, segment_end=SEGMENT, epoch=epoch)
    )


def test_the_whole_units_that_begin_in_a_range_are_found_though_nothing_leads_to_them():
    log = (
        Log()
        .ours(1, synced_offset=1)
        .ours(2, synced_offset=2)
        .ours(1, synced_offset=3)
        .ours(3, synced_offset=4)
    )
    first, second, third, fourth, end = log.borders
    torn = Log()
    torn.data = bytes(100) + log.data[100:]

    assert [item.synced_offset for item in items_between(torn, 0, end)] == [2, 3, 4]
    assert [item.synced_offset for item in items_between(torn, second, third)] == [2]
    assert [item.synced_offset for item in items_between(torn, second + 1, fourth)] == [3]
    assert [item.synced_offset for item in items_between(torn, first, second)] == []
    assert [
        item.synced_offset for item in items_between(torn, second, end, window_offset=second)
    ] == [2, 3, 4]


def test_a_torn_unit_and_one_of_an_earlier_epoch_are_no_evidence():
    log = (
        Log()
        .ours(2, epoch=5, synced_offset=1)
        .ours(1, epoch=4, synced_offset=2)
        .ours(1, epoch=5, synced_offset=3)
    )
    torn = Log()
    torn.data = log.data[:-20] + bytes(20)

    assert [item.synced_offset for item in items_between(log, 0, log.end, epoch=5)] == [1, 3]
    assert [item.synced_offset for item in items_between(torn, 0, log.end, epoch=5)] == [1]


def test_records_of_a_broker_and_the_later_records_of_a_unit_are_no_beginnings():
    log = Log().ours(3, synced_offset=1)
    for length in range(8):
        log.brokers(b"x" * length)
    log.brokers(b"y" * (-len(broker_record(0, b"")) - log.end % 8 & 7))
    log.ours(synced_offset=2)
    assert any(place % 8 == 0 for place in log.places[3:-2]), (
        "one of the broker's records lies on a word border"
    )
    assert log.places[-1] % 8 == 0

    assert [item.synced_offset for item in items_between(log, 0, SEGMENT)] == [1, 2]
