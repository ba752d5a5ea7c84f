"""A record with any header that a broker may have written: every kind of copy, stored and read
again, has its body and its header.
"""

import zlib

import lz4.frame
import msgspec
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.leases import retry_message
from scheduler import scheduled_message
from storage.formats import compression, names
from storage.formats import record as records
from storage.formats.delay_levels import SCHEDULE_TOPIC
from storage.formats.record import Record
from storage.message import Message, StoredMessage
from tests.fault.campaign_size import sized
from tests.support.builders import encoded
from txn import half_message
from txn.checkback_plan import CheckbackPolicy
from txn.half_message import Facts

NOW_MS = 1_800_000_000_000
COMPRESS = {
    0: zlib.compress,
    0x100: lz4.frame.compress,
    0x200: zstandard.ZstdCompressor().compress,
    0x300: zlib.compress,
}
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0\x01\x02"), min_size=1)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)


@st.composite
def brokers_records(draw: st.DrawFn) -> tuple[Record, bytes]:
    """A record of a topic, and the body as its sender had it."""
    sent = body = draw(st.binary(max_size=200))
    sys_flag = draw(st.sampled_from([0, 0x2, 0x4, 0x8, 0x2 | 0x8]))
    born_host = draw(st.binary(min_size=8, max_size=8))
    if draw(st.booleans()):
        kind = draw(st.sampled_from(list(COMPRESS)))
        body, sys_flag = COMPRESS[kind](body), sys_flag | kind | records.COMPRESSED
    if draw(st.booleans()):
        born_host, sys_flag = draw(st.binary(min_size=20, max_size=20)), sys_flag | 0x10
    topic = draw(st.sampled_from(["orders", "t" * 127, "t" * 200]))
    own = {"UNIQ_KEY": "FD01", "WAIT": "true", "REAL_TOPIC": topic, "REAL_QID": "3", "PGROUP": "g"}
    own |= draw(st.dictionaries(TEXTS, TEXTS, max_size=3))
    text = "".join(f"{name}\x01{value}\x02" for name, value in own.items())
    return (
        Record(
            magic=records.MAGIC_V1 if len(topic) <= 127 else records.MAGIC_V2,
            body_crc=records.body_crc(body),
            queue_number=3,
            flag=draw(st.sampled_from([0, -1, 7]) | INTS),
            queue_offset=5,
            physical_offset=4_096,
            sys_flag=sys_flag,
            born_at_ms=NOW_MS - draw(st.integers(0, 1_000)),
            born_host=born_host,
            stored_at_ms=NOW_MS,
            store_host=bytes([10, 0, 0, 7, 0, 0, 0x2A, 0x9F]),
            reconsume_times=draw(st.integers(0, 1 << 20)),
            prepared_offset=draw(st.integers(0, 1 << 40)),
            body=body,
            topic=topic,
            properties=text.encode(),
        ),
        sent,
    )


def copies_of(message: StoredMessage) -> dict[str, Message]:
    """One of each kind."""
    facts = Facts(message_count=1, policy=CheckbackPolicy())
    so_far = half_message.CarriedState(
        sequence=1, prepared_at_ms=NOW_MS, revision=2, next_check_at_ms=NOW_MS
    )
    put_back = msgspec.structs.replace(facts, so_far=so_far)
    moved = scheduled_message.CarriedState(revision=2)
    final = half_message.unwrap_final(message)
    delayed = {
        f"{kind} for {final.queue.topic[:3]}": scheduled_message.delay(
            scheduled_message.with_delay(final, delay_ms=delay_ms), NOW_MS
        )
        for kind, delay_ms in (("by level", 5_000), ("by time", 5_001))
    }
    assert {one.queue.topic for one in delayed.values()} == {SCHEDULE_TOPIC, names.TIMER_TOPIC}
    waiting = stored(delayed["by time for " + final.queue.topic[:3]])
    (half,) = half_message.wrap_halves(
        [message], transaction_id="t", producer_group="g", facts=facts
    )
    retry = retry_message.retry_copy(message, "g", attempts=4, generation=0)
    return delayed | {
        "final": final,
        "half": half,
        "half written again": half_message.wrap_again([stored(half)], put_back)[0],
        "delivered": scheduled_message.unwrap(waiting),
        "delayed message written again": scheduled_message.put_back(waiting, NOW_MS, moved),
        "retry": retry,
        "retry of a retry": retry_message.retry_copy(stored(retry), "g", attempts=5, generation=0),
        "dead letter": retry_message.dead_letter_copy(message, "g", attempts=4, reason="r"),
    }


ATTEMPTS = {"retry": 4, "retry of a retry": 5, "dead letter": 4}


def stored(message: Message) -> StoredMessage:
    return records.to_message(records.decode(encoded([message], first_offset=8_192).data))


@settings(max_examples=sized(ci=150, full=5_000))
@given(brokers_records())
def test_every_copy_of_a_record_has_its_body_and_its_header(given_record):
    record, sent = given_record
    for kind, copy in copies_of(records.to_message(records.decode(records.encode(record)))).items():
        data = encoded([copy], first_offset=8_192).data
        found = records.decode(data)

        assert len(data) == records.start(data)[0]
        assert (found.flag, found.born_host) == (record.flag, record.born_host), kind
        assert found.sys_flag & ~0xC == record.sys_flag & ~0xC, kind
        assert found.reconsume_times == ATTEMPTS.get(kind, record.reconsume_times), kind
        assert (found.born_at_ms, found.store_host) == (record.born_at_ms, records.HOST), kind
        if record.body or copy.queue.topic not in names.STORED_AGAIN:  # else a placeholder
            assert found.body_crc == record.body_crc, kind
        body = records.to_message(found).body
        if found.sys_flag & records.COMPRESSED:
            body = compression.decompressed(body, found.sys_flag)
        assert body == sent, kind
