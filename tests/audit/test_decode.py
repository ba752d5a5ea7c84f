"""Records as columns: every field as the plain codec reads it, whoever wrote the record."""

import tarfile
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from audit import arrow_columns, columns
from audit.columns import Role
from audit.decode import batches, numbers, plain_rows, spans
from audit.decode.hashes import hash_of, hashes
from audit.decode.records import TEXT_PROPERTIES, Records
from audit.decode.walk import Piece, What
from audit.log import brokers, log_range
from audit.log.log_files import LogReader
from scheduler import scheduled_message
from storage.formats import index_file, names, op_message, properties
from storage.formats import record as records
from storage.formats.delay_levels import deliver_at_ms
from storage.formats.record import Record
from storage.message import RecordHeader, StoredMessage, TransactionBits
from tests.golden.test_own_store import FOLDER as OURS
from tests.golden.test_rocketmq_stores import FOLDER as BROKERS
from tests.support.builders import encoded, message
from tests.support.logs import BROKER_HOST, Log, broker_record

STORES = {
    "ours, closed": OURS / "closed.tar.xz",
    "ours, cut": OURS / "cut.tar.xz",
    "a broker's, stopped": BROKERS / "public-1.tar.xz",
    "a broker's, killed": BROKERS / "public-2.tar.xz",
}

PLAIN = (
    *numbers.COLUMNS,
    *("kind", "topic", "transaction_id", "group_hash", "half_offsets", "first_half_offset"),
    *("is_verified", "is_commit", "event", "note"),
    *TEXT_PROPERTIES,
)


def rows_of(store: Path) -> list[dict]:
    """Every row of a store, and the bytes of its log."""
    log = log_range.find_log(str(store))
    reader = LogReader()
    found = []
    for part in log_range.parts(log, split_bytes=100_000):
        for piece in log_range.pieces(log, part, reader):
            if piece.what is What.RECORDS:
                for batch in batches.of_records(
                    piece, part.segment.base_offset, arrow_columns.schema()
                ):
                    found += batch.to_pylist()
    reader.close()
    return found


def row_of(raw: bytes, offset: int = 0) -> dict:
    """By Arrow; without Arrow it is the same."""
    row = batches.row_at(raw, offset, tuple(columns.COLUMNS))
    assert row is not None
    assert plain_rows.row_at(raw, offset, PLAIN) == {name: row[name] for name in PLAIN}
    return row


def expected(raw: bytes, at: int, offset: int, segment: int) -> dict:
    """The row as the plain codec gives it."""
    total, _ = records.start(raw, at)
    record = records.decode(raw[at : at + total])
    message = records.to_message(record)
    own = properties.decode(record.properties)
    kind = kind_of(message)
    is_of_one = kind in ("half", "held", "final") or (
        kind in ("delayed", "delayed_again") and message.transaction is TransactionBits.COMMIT
    )
    transaction_id = own.get("__transactionId__") or (own.get("UNIQ_KEY") if is_of_one else None)
    half_offsets = list(op_message.half_offsets(record.body)) if kind == "op" else None
    facts = own.get("__transaction", "")
    return {
        "segment": segment,
        "log_offset": offset,
        "record_bytes": total,
        "kind": kind,
        "role": int(role_of(kind, record, own, is_known=bool(transaction_id))),
        "damage": None,
        "is_verified": True,
        "topic": record.topic,
        "queue_id": record.queue_number,
        "queue_offset": record.queue_offset,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "is_commit": message.transaction is TransactionBits.COMMIT,
        "born_at": datetime.fromtimestamp(record.born_at_ms / 1000, UTC),
        "stored_at": datetime.fromtimestamp(record.stored_at_ms / 1000, UTC),
        "stored_ms": record.stored_at_ms,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_offset,
        "body_bytes": len(record.body),
        "body_crc": record.body_crc,
        "message_id": own.get("UNIQ_KEY"),
        "message_hash": hash_of(own.get("UNIQ_KEY", "")) >> 35 if transaction_id else None,
        "transaction_id": transaction_id,
        "producer_group": own.get("PGROUP"),
        "group_hash": hash_of(own["PGROUP"]) if "PGROUP" in own else None,
        "real_topic": own.get("REAL_TOPIC"),
        "transaction_mark": own.get("TRAN_MSG"),
        "real_queue_id": int(own["REAL_QID"]) if "REAL_QID" in own else None,
        "key": own.get("KEYS"),
        "tag": own.get("TAGS"),
        "schedule_id": own.get("__schedule"),
        "check_times": int(own["TRANSACTION_CHECK_TIMES"])
        if "TRANSACTION_CHECK_TIMES" in own
        else None,
        "decision": own.get("__decision"),
        "half_offsets": half_offsets,
        "first_half_offset": min(half_offsets) if half_offsets else None,
        "message_count": int(facts.partition(":")[2].partition(",")[0]) if facts else None,
        "event": record.body.decode().split('"')[3] if kind == "check" else None,
        "note": record.body.decode("utf-8", "replace") if record.topic in columns.NOTED else None,
        "facts": own.get("__transaction"),
        "decided_by": own.get("__decided_by"),
        "check_answer": own.get("__check_answer"),
        "due_ms": scheduled_message.due_ms_of(message)
        if scheduled_message.is_delayed(message)
        else None,
        "so_far": own.get("__schedule_so_far"),
        "attempts": int(own["RECONSUME_TIME"]) if "RECONSUME_TIME" in own else None,
        "retry_topic": own.get("RETRY_TOPIC"),
        "origin_id": own.get("ORIGIN_MESSAGE_ID"),
        "origin_place": own.get("__origin"),
        "key_hashes": key_hashes(record, message, own),
        "properties": record.properties.decode("utf-8", "replace"),
        "body": record.body,
    }


def key_hashes(record: Record, message: StoredMessage, own: dict[str, str]) -> list[int]:
    """By its id and its keys; of a rolled-back message by none."""
    names_of_it = [own[name] for name in ("UNIQ_KEY",) if name in own] + own.get("KEYS", "").split()
    if message.transaction is TransactionBits.ROLLBACK:
        names_of_it = []
    return index_file.key_hashes([f"{record.topic}#{name}" for name in names_of_it]).tolist()


def kind_of(message: StoredMessage) -> str:
    topic = message.queue.topic
    if topic in ("SCHEDULE_TOPIC_XXXX", names.TIMER_TOPIC):
        if message.system.get("REAL_TOPIC", "").startswith("%RETRY%"):
            return "retry"
        return "delayed_again" if "__schedule_so_far" in message.system else "delayed"
    known = {
        names.HALF_TOPIC: "half",
        names.OP_TOPIC: "op",
        names.HELD_TOPIC: "held",
        names.CHECK_TOPIC: "check",
    }
    if topic in known:
        return known[topic]
    for prefix, kind in (
        ("%RETRY%", "retry"),
        ("%DLQ%", "dead_letter"),
        ("rmq_sys_escrowmq_", "system"),
    ):
        if topic.startswith(prefix):
            return kind
    return "final" if message.transaction is TransactionBits.COMMIT else "message"


def role_of(kind: str, record: Record, own: dict[str, str], *, is_known: bool) -> Role:
    """`is_known`: is it known of which transaction the record is?"""
    if kind == "op":
        return {"commit": Role.COMMIT_OP, "rollback": Role.ROLLBACK_OP, None: Role.PLAIN_OP}[
            own.get("__decision")
        ]
    if kind == "check":
        return Role.RESUMED if b'"event":"resumed"' in record.body else Role(0)
    if kind == "final" and "__schedule" in own:
        return Role.ARRIVED
    found = Role.NAMED if record.prepared_offset else Role.UNNAMED
    found = {"half": Role.HALF, "held": Role.HELD, "delayed": Role.WAITING, "final": found}.get(
        kind, Role(0)
    )
    if kind == "delayed_again":
        return Role.WAITING_AGAIN if is_known else Role(0)
    if kind == "delayed" and not is_known:
        return Role(0)
    is_final = found in (Role.WAITING, Role.NAMED, Role.UNNAMED)
    is_ours = (
        record.store_host == records.HOST and int(own["__unit"][:12], 16) > record.prepared_offset
    )
    return found | (Role.OURS if is_final and is_ours else Role(0))


@pytest.mark.parametrize("name", STORES)
def test_every_field_of_every_record_is_what_the_plain_codec_reads(name, tmp_path):
    with tarfile.open(STORES[name]) as archive:
        archive.extractall(tmp_path, filter="data")
    files = {
        int(path.name): path.read_bytes() for path in (tmp_path / "store" / "commitlog").iterdir()
    }

    rows = rows_of(tmp_path / "store")

    assert len(rows) > 100
    for row in rows:
        base = row["segment"]
        assert row == expected(files[base], row["log_offset"] - base, row["log_offset"], base)


@pytest.mark.parametrize("name", STORES)
def test_without_arrow_the_columns_of_every_record_are_the_same(name, tmp_path):
    with tarfile.open(STORES[name]) as archive:
        archive.extractall(tmp_path, filter="data")
    log = log_range.find_log(str(tmp_path / "store"))
    reader = LogReader()
    compared = 0

    for part in log_range.parts(log, split_bytes=100_000):
        for piece in log_range.pieces(log, part, reader):
            if piece.what is What.RECORDS:
                rows = Records(piece, piece.record_offsets, piece.record_bytes)
                (by_arrow,) = batches.of_records(piece, 0, arrow_columns.schema(PLAIN))
                for column in PLAIN:
                    assert plain_rows.column(rows, column) == by_arrow[column].to_pylist(), column
                compared += len(rows)

    reader.close()
    assert compared > 100


def test_the_kinds_that_a_store_can_hold_are_all_met_in_the_golden_ones(tmp_path):
    found = set()
    for name, path in STORES.items():
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path / name, filter="data")
        found |= {row["kind"] for row in rows_of(tmp_path / name / "store")}

    assert found == set(columns.KINDS) - {columns.DELAYED_AGAIN}


def test_a_delayed_message_of_no_transaction_is_nothing_to_any():
    """However many there are: they are all in the one group that has no transaction."""
    row = row_of(
        broker_record(
            0, topic="SCHEDULE_TOPIC_XXXX", properties=b"UNIQ_KEY\x01id\x02REAL_TOPIC\x01orders\x02"
        )
    )

    assert (row["kind"], row["role"], row["message_hash"], row["transaction_id"]) == (
        "delayed",
        0,
        None,
        None,
    )


def test_a_half_of_ours_that_a_broker_commits_is_not_a_final_that_we_wrote():
    """It copies the host and the properties of the half, and with them the unit that the half was
    in.
    """
    log = Log(8_192).ours()
    half = records.decode(log.data)
    final = half._replace(
        physical_offset=log.end, sys_flag=8, prepared_offset=8_192, topic="orders"
    )

    row = row_of(records.encode(final), log.end)

    assert Role(row["role"]) == Role.NAMED


def test_different_texts_have_different_hashes():
    texts = sorted(
        {f"msg_{number:0{width}}" for width in range(1, 30) for number in range(2_000)}
        | {"", "a", "a" * 200}
    )
    ends = np.cumsum([len(text) for text in texts])
    begins = np.concatenate(([0], ends[:-1]))

    found = hashes(spans.padded(np.frombuffer("".join(texts).encode(), np.uint8)), (begins, ends))

    assert len(set(found.tolist())) == len(texts)
    assert found[::1_000].tolist() == [hash_of(text) for text in texts[::1_000]]


@pytest.mark.parametrize("born", [BROKER_HOST, bytes(range(20))])
@pytest.mark.parametrize("store", [BROKER_HOST, bytes(range(100, 120))])
def test_records_with_longer_hosts_have_their_fields_further_back(born, store):
    sys_flag = (records.BORN_HOST_IPV6 if len(born) == 20 else 0) | (
        records.STORE_HOST_IPV6 if len(store) == 20 else 0
    )
    raw = broker_record(
        0,
        b"body",
        sys_flag=sys_flag,
        born_host=born,
        host=store,
        prepared_offset=7_777,
        reconsume_times=3,
        stored_at_ms=99,
    )

    assert row_of(raw) == expected(raw, 0, 0, 0)


@pytest.mark.parametrize("born", [None, BROKER_HOST, bytes(range(20))])
def test_a_final_that_we_wrote_is_ours_wherever_its_half_was_born(born):
    sys_flag = records.BORN_HOST_IPV6 if born is not None and len(born) == 20 else 0
    header = None if born is None else RecordHeader(7, sys_flag, born, 0)
    final = message(header=header, transaction=TransactionBits.COMMIT, prepared_log_offset=64)

    raw = encoded([final], first_offset=4_096).data

    row = row_of(raw, 4_096)
    assert row == expected(raw, 0, 4_096, row["segment"])
    assert row["role"] & Role.OURS
    assert brokers.is_ours(raw)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"UNIQ_KEY\x01id",  # the last item open, as brokers leave it
        b"UNIQ_KEY\x01id\x02",
        b"\x02\x02UNIQ_KEY\x01id\x02\x02",
        b"UNIQ_KEY\x01first\x02UNIQ_KEY\x01last\x02",
        b"UNIQ_KEY\x01\x02KEYS\x01a\x01b\x02",
        b"XUNIQ_KEY\x01no\x02UNIQ_KEYX\x01no\x02UNIQ_KEY",
        # the same length and the same first eight bytes
        b"REAL_TOPXX\x01no\x02REAL_TOPIC\x01yes\x02",
        b"__transactionIdX_\x01no\x02",
        b"TAGS\x01\xff\xfe\x02KEYS\x01\xc3\xa4\x02",  # not UTF-8
        b"REAL_QID\x0112x\x02TRANSACTION_CHECK_TIMES\x0199999999999999999999\x02",
    ],
)
def test_properties_are_read_as_the_plain_codec_reads_them(text):
    raw = broker_record(0, properties=text)
    own = properties.decode(text)

    row = row_of(raw)

    names_of = {"message_id": "UNIQ_KEY", "key": "KEYS", "tag": "TAGS", "real_topic": "REAL_TOPIC"}
    assert {column: row[column] for column in names_of} == {
        column: own.get(name) for column, name in names_of.items()
    }
    assert row["real_queue_id"] is None
    assert row["transaction_id"] is None


def test_what_many_records_of_all_kinds_share_a_window_does_not_matter():
    """Open and closed ends, none at all, different hosts: in one batch, each record keeps
    its own.
    """
    randomness = Random(7)
    raw, offsets = b"", []
    for number in range(300):
        offsets.append(len(raw))
        ends = randomness.choice([b"", b"\x02", b"\x02\x02"])
        text = (
            b""
            if number % 7 == 0
            else b"UNIQ_KEY\x01id-%d\x02TAGS\x01t%d" % (number, number) + ends
        )
        sys_flag, born = randomness.choice([(0, BROKER_HOST), (records.BORN_HOST_IPV6, bytes(20))])
        raw += broker_record(
            len(raw), b"b" * number, properties=text, sys_flag=sys_flag, born_host=born
        )
    places, lengths = (
        pa.array(offsets).to_numpy(),
        pa.array([records.start(raw, at)[0] for at in offsets]).to_numpy(),
    )
    piece = Piece(What.RECORDS, 0, len(raw), "", raw, 0, places, lengths)

    (batch,) = batches.of_records(piece, 0, arrow_columns.schema())

    assert batch.to_pylist() == [expected(raw, at, at, 0) for at in offsets]


@pytest.mark.parametrize("at", [84, 88 + len(b"a broker's")])  # the body's length, the topic's
def test_a_record_whose_lengths_do_not_add_up_is_a_row_of_damage(at):
    """A walk would not let it through; bytes that somebody made up under a right checksum would
    come this far.
    """
    raw = bytearray(broker_record(0))
    raw[at] = 0x7F
    piece = Piece(
        What.RECORDS,
        0,
        len(raw),
        "",
        bytes(raw),
        0,
        pa.array([0]).to_numpy(),
        pa.array([len(raw)]).to_numpy(),
    )

    rows = [
        row
        for batch in batches.of_records(piece, 0, arrow_columns.schema())
        for row in batch.to_pylist()
    ]

    assert [(row["kind"], row["log_offset"], row["record_bytes"]) for row in rows] == [
        ("damaged", 0, len(raw))
    ]
    assert rows[0]["damage"] == "the lengths of the record do not add up"


def test_a_number_that_is_too_large_for_its_column_is_none():
    large = b"REAL_QID\x0199999999999\x02RECONSUME_TIME\x013\x02"

    row = batches.row_at(broker_record(0, properties=large), 0, ["real_queue_id", "attempts"])

    assert row == {"real_queue_id": None, "attempts": 3}


@pytest.mark.parametrize(
    ("level", "delay_ms"),
    [("", 1_000), ("0", 1_000), ("1", 1_000), ("3", 10_000), ("19", 7_200_000), ("x", 1_000)],
)
def test_a_delayed_message_is_due_when_a_broker_delivers_its_level(level, delay_ms):
    own = f"REAL_TOPIC\x01orders\x02DELAY\x01{level}\x02".encode()

    row = row_of(broker_record(0, topic="SCHEDULE_TOPIC_XXXX", properties=own))

    assert row["due_ms"] == row["stored_ms"] + delay_ms
    assert delay_ms == deliver_at_ms(level, 0)


def test_columns_that_are_not_asked_for_are_not_there():
    raw = broker_record(0)

    assert batches.row_at(raw, 0, ["tag", "log_offset"]) == {"tag": None, "log_offset": 0}


def test_the_number_of_messages_is_read_from_the_first_half_only():
    record = Record(
        *records.decode(
            broker_record(0, properties=b'__transaction\x01{"message_count":12,"policy":{}}\x02')
        )
    )

    assert row_of(records.encode(record))["message_count"] == 12
    assert (
        row_of(broker_record(0, properties=b'__transaction\x01{"other":12}\x02'))["message_count"]
        is None
    )
