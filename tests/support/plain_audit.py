"""The audit once more, in plain Python: slow, small, and obviously right. Spark must say the same.

It shares `scan.judge` and the record codec with the audit, and nothing else: no windows, no splits,
no sums.
"""

from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from storage.formats import names, op_message, properties, scan, unit
from storage.formats import record as records
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.record import DamagedRecord
from storage.message import StoredMessage, TransactionBits

DELAY_TOPICS = (SCHEDULE_TOPIC, names.TIMER_TOPIC)


class Read(NamedTuple):
    """`damage`: (log offset, length) of every stretch that is no whole record; `ours`: log offsets
    of finals that we wrote.
    """

    messages: list[StoredMessage]
    damage: list[tuple[int, int]]
    ours: set[int]


def read_log(folder: Path, *, end: int) -> Read:
    """Every record of the segments in a folder, below `end`, byte by byte where something
    is wrong.
    """
    found = Read([], [], set())
    for path in sorted(folder.iterdir()):
        base = int(path.name)
        data = path.read_bytes()
        _read_segment(data[: max(0, end - base)], base, base + len(data), found)
    return found


def _read_segment(data: bytes, base: int, segment_end: int, found: Read) -> None:
    at = 0
    while at < len(data):
        step = scan.judge(data, at, base, segment_end=segment_end)
        if isinstance(step, scan.Unit):
            for place, length in step.records:
                _add(data, place, length, found)
            at = step.end
        elif step.stop is scan.Stop.END_OF_FILE:
            return
        else:
            border = next(
                (
                    place
                    for place in range(at + 1, len(data))
                    if _is_border(data, place, base, segment_end)
                ),
                len(data),
            )
            _read_damaged(data, at, border, base, found)
            at = border


def _is_border(data: bytes, at: int, base: int, segment_end: int) -> bool:
    if data[at + 4 : at + 5] != b"\xda":
        return False
    step = scan.judge(data, at, base, segment_end=segment_end)
    return isinstance(step, scan.Unit) and (
        step.item is None or step.item.first_offset == base + at
    )


def _read_damaged(data: bytes, begin: int, end: int, base: int, found: Read) -> None:
    """Of each unit in the stretch the records that are whole, unless all of them are."""
    whole: list[tuple[int, int, unit.UnitItem]] = []  # place, length, its unit
    at = begin
    while at < end:
        length = _length_if_whole(data, at, base) if data[at + 4 : at + 5] == b"\xda" else 0
        of_unit = _unit_of(data, at + length) if length else None
        if of_unit is not None:
            whole.append((at, length, of_unit))
        at += 1 if of_unit is None else length
    kept = []
    for of_unit in {its for *_, its in whole}:
        mine = [(place, length) for place, length, its in whole if its == of_unit]
        # or copies that a broker made
        if len(mine) < of_unit.record_count or mine[0][0] != of_unit.first_offset - base:
            kept += mine
    at = begin
    for place, length in sorted(kept):
        if place > at:
            found.damage.append((base + at, place - at))
        _add(data, place, length, found)
        at = place + length
    if at < end:
        found.damage.append((base + at, end - at))


def _length_if_whole(data: bytes, at: int, base: int) -> int:
    try:
        record = records.decode(data, at)
    except DamagedRecord:
        return 0
    is_whole = (
        record.physical_offset == base + at and records.body_crc(record.body) == record.body_crc
    )
    return records.start(data, at)[0] if is_whole else 0


def _unit_of(data: bytes, end: int) -> unit.UnitItem | None:
    for tail in (0, unit.SEAL_BYTES):
        item = unit.decode_item(data, end - unit.UNIT_ITEM_BYTES - tail)
        if item is not None:
            return item
    return None


def _add(data: bytes, at: int, length: int, found: Read) -> None:
    record = records.decode(data[at : at + length])
    found.messages.append(records.to_message(record))
    # A broker that commits a half of ours copies its host, and the unit that the half was in.
    text = properties.decode(record.properties).get(properties.UNIT, "")
    if record.store_host == records.HOST and text and int(text[:12], 16) > record.prepared_offset:
        found.ours.add(record.physical_offset)


# --------------------------------------------------------------------------------------------------
# verdicts


class Transaction:
    """Everything in the log that has to do with one transaction, in log order."""

    def __init__(self) -> None:
        self.halves: list[StoredMessage] = []
        self.finals: list[StoredMessage] = []  # in their real topics, or waiting for their time
        # copies of those that wait, stored before their segment went
        self.again: list[StoredMessage] = []
        self.deliveries: list[StoredMessage] = []  # of those that waited
        self.decisions: list[tuple[int, str | None]] = []  # log offset, what was decided
        self.named: list[int] = []  # the numbers of halves that ops name
        self.held: list[int] = []
        self.resumed: list[int] = []


def verdicts(read: Read, *, log_begin: int = 0) -> dict[str, str]:
    """The verdict of each transaction."""
    transactions = collect(read.messages)
    numbers = [half.queue_offset for one in transactions.values() for half in one.halves]
    first_number = min(numbers, default=None)
    return {
        key: verdict(one, log_begin, first_number, read.ours) for key, one in transactions.items()
    }


def collect(messages: list[StoredMessage]) -> dict[str, Transaction]:
    found: dict[str, Transaction] = defaultdict(Transaction)
    of_half = {
        one.queue_offset: _id(one) for one in messages if one.queue.topic == names.HALF_TOPIC
    }
    begins = {
        half.message_id
        for half in messages
        if half.queue.topic == names.HALF_TOPIC and half.log_offset == 0
    }
    for message in messages:
        topic, real_topic = message.queue.topic, message.system.get(properties.REAL_TOPIC, "")
        own_id = message.system.get(properties.TRANSACTION_ID)
        if topic == names.HALF_TOPIC:
            found[_id(message)].halves.append(message)
        elif topic == names.OP_TOPIC:
            halves = op_message.half_offsets(message.body)
            for number in halves if own_id is None else ():
                key = of_half.get(number, f"half number {number}")
                found[key].decisions.append((message.log_offset or 0, None))
                found[key].named.append(number)
            if own_id is not None:
                found[own_id].decisions.append(
                    (message.log_offset or 0, message.system.get("__decision"))
                )
                found[own_id].named.extend(halves)
        elif topic == names.HELD_TOPIC:
            found[_id(message)].held.append(message.log_offset or 0)
        elif topic == names.CHECK_TOPIC:
            if message.body.startswith(b'{"event":"resumed"'):
                found[own_id or ""].resumed.append(message.log_offset or 0)
            else:
                found.setdefault(own_id or "", Transaction())  # that there was one, is all it says
        elif topic.startswith(("%RETRY%", "%DLQ%")) or (
            topic in DELAY_TOPICS and real_topic.startswith("%RETRY%")
        ):
            if own_id is not None:
                found.setdefault(own_id, Transaction())
        elif topic in DELAY_TOPICS and real_topic == names.HALF_TOPIC:
            found.setdefault(_id(message), Transaction())  # a half that is put back after a delay
        elif message.transaction is TransactionBits.COMMIT:
            if topic in DELAY_TOPICS and "__schedule_so_far" in message.system:
                found[_id(message)].again.append(message)
                continue
            is_delivery = properties.SCHEDULE_ID in message.system and topic not in DELAY_TOPICS
            names_none = (
                message.prepared_log_offset == 0
                and message.message_id not in begins
                and topic not in DELAY_TOPICS
            )
            one = found[_id(message)]
            (one.deliveries if is_delivery or names_none else one.finals).append(message)
    found.pop("", None)
    return found


def _id(message: StoredMessage) -> str:
    return message.system.get(properties.TRANSACTION_ID) or message.message_id


def verdict(one: Transaction, log_begin: int, first_number: int | None, ours: set[int]) -> str:
    said = {decision for _, decision in one.decisions}
    published = one.finals + one.deliveries
    if not one.halves:
        return (
            "unverifiable_retention"
            if _began_before(one, log_begin, first_number)
            else "op_without_half"
        )
    final_places = [final.log_offset or 0 for final in one.finals + _unnamed(one)]
    plain_places = [offset for offset, decision in one.decisions if decision is None]
    # a final that a broker put among the halves
    is_astray = any(half.transaction is TransactionBits.COMMIT for half in one.halves)
    is_op_first = bool(plain_places and final_places) and min(plain_places) < min(final_places)
    if published and ("rollback" in said or (is_op_first and not is_astray)):
        return "rolled_back_but_delivered"
    moments = [offset for offset, _ in one.decisions] + final_places
    is_late = bool(one.held) and bool(moments) and min(moments) > min(one.held)
    has_final = is_astray or (published and not is_published_undecided(one, ours))
    if "commit" in said or (has_final and "rollback" not in said):
        messages = {half.message_id for half in one.halves}
        finals = Counter(final.message_id for final in one.finals)
        if not messages <= finals.keys():
            return "final_missing"
        waits = Counter(
            final.message_id for final in one.finals if final.queue.topic in DELAY_TOPICS
        )
        delivered = Counter(delivery.message_id for delivery in one.deliveries)
        if any(finals[each] - waits[each] + bool(waits[each]) > 1 for each in finals):
            return "committed_duplicated"
        if any(waits[each] and delivered[each] > 1 for each in delivered):
            return "committed_duplicated"
        return "resolved_late" if is_late else "committed_once"
    if said:
        return "resolved_late" if is_late else "rolled_back_clean"
    return (
        "undecided_held"
        if one.held and max(one.held) > max(one.resumed, default=-1)
        else "undecided"
    )


def is_published_undecided(one: Transaction, ours: set[int]) -> bool:
    """This service writes a final and its op together; a broker may have come no further than the
    final.
    """
    return (
        bool(one.halves)
        and not one.decisions
        and any(final.log_offset in ours for final in one.finals + _unnamed(one))
    )


def _unnamed(one: Transaction) -> list[StoredMessage]:
    return [
        delivery for delivery in one.deliveries if properties.SCHEDULE_ID not in delivery.system
    ]


def _began_before(one: Transaction, log_begin: int, first_number: int | None) -> bool:
    if log_begin == 0:
        return False
    prepared = [
        final.prepared_log_offset
        for final in one.finals + one.again + one.deliveries
        if final.prepared_log_offset
    ]
    if prepared:
        return min(prepared) < log_begin
    if one.named:
        return first_number is None or min(one.named) < first_number
    return True
