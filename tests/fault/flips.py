"""Every bit of a record of each kind, turned over: which flips does the reader not notice?"""

from storage.formats import scan, unit
from storage.formats.row import rows_of
from storage.message import Message, QueueId, TransactionBits
from tests.support.builders import message, messages
from tests.support.logs import many_at_a_time
from txn import half_message
from txn.checkback_plan import CheckbackPolicy
from txn.half_message import Facts, Op
from txn.states import Resolver, TxnState


def records_of_each_kind() -> dict[str, list[Message]]:
    """Units: the records of each are encoded behind one another."""
    plain = message(b"a body", key="key", tag="tag", properties={"own": "value", "empty": ""})
    facts = Facts(message_count=1, policy=CheckbackPolicy(), business_key="order-8812")
    halves = half_message.wrap_halves(
        [plain], transaction_id="txn_1", producer_group="shop", facts=facts
    )
    op = half_message.op_message(
        Op((3,), "txn_1", TxnState.COMMITTED, Resolver.PRODUCER, 1_700_000_000_000, None, (7,))
    )
    final = message(b"a body", transaction=TransactionBits.COMMIT, prepared_log_offset=64)
    return {
        "plain": [plain],
        "half": halves,
        "op": [op],
        "final and op": [final, op],
        "three": messages(3),
        "version 2": [message(queue=QueueId("%RETRY%" + "g" * 200, 0))],
    }


def undetected_flips(given: list[Message]) -> list[tuple[int, int]]:
    """(byte, bit) of every flip in the unit after which it is still taken for whole."""
    encoded = unit.encode(
        rows_of(given),
        range(len(given)),
        first_offset=0,
        synced_offset=0,
        epoch=1,
        stored_at_ms=1_700_000_000_000,
    )
    raw = bytearray(encoded.data + bytes(64))
    undetected = []
    for at in range(len(encoded.data)):
        for bit in range(8):
            raw[at] ^= 1 << bit
            if _is_whole(bytes(raw)):
                undetected.append((at, bit))
            raw[at] ^= 1 << bit
    return undetected


def _is_whole(raw: bytes) -> bool:
    """For either way of checking."""
    where = {"begin": 0, "segment_end": 1 << 20}
    with many_at_a_time():
        together = scan.scan(raw, 0, **where).end
    return max(together, scan.scan(raw, 0, **where).end) > 0
