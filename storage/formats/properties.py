r"""The properties of a record: one UTF-8 string of `name 0x01 value 0x02` items.

Three kinds share the string: RocketMQ's own names (KEYS, TAGS, ...), EscrowMQ's (all begin with
`__`, which RocketMQ ignores), and the sender's. The reader skips what is not an item; a bare 0x02
is therefore padding that no reader sees. Source: RocketMQ MessageDecoder#messageProperties2String
and #string2messageProperties, MessageConst#STRING_HASH_SET.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from storage.message import ORDERING_KEY

NAME_END = "\x01"
VALUE_END = "\x02"
MAX_PROPERTIES_BYTES = 32_767  # the length field is a signed 16-bit number

MESSAGE_ID = "UNIQ_KEY"
KEYS = "KEYS"
TAGS = "TAGS"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE = "REAL_QID"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_MARK = "TRAN_MSG"
TRANSACTION_ID = "__transactionId__"
WAIT = "WAIT"  # "false" on a copy of a broker for a retry: its sender does not wait for the disk
RETRY_TOPIC = "RETRY_TOPIC"
RECONSUME_TIME = "RECONSUME_TIME"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
# on a copy of a half: the queue offset of the first one
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"  # on a copy of a half: how often its producer was asked

CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
MESSAGE_TYPE = "MSG_TYPE"
CLUSTER = "CLUSTER"

CONTENT_TYPE = "__content_type"
REPLY_BY = "__reply_by"  # on a request: until when a reply is in time, wall milliseconds
SCHEDULE_ID = "__schedule"  # on a delayed message, and on it when it is delivered
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
# names of the sender's properties whose value is empty: an item without a value is skipped by
# readers
EMPTY = "__empty"

# the mark of a record without a body in a topic whose messages a broker stores again; it refuses to
# store a message without one, and would try for ever, so the record has a body of one byte
NO_BODY = "__no_body"
NO_BODY_MARK = f"{NO_BODY}{NAME_END}1{VALUE_END}"
PLACEHOLDER = b"\x00"

_LOOKED_UP_BY = re.compile(rb"(?:^|\x02)(UNIQ_KEY|KEYS)\x01([^\x02]+)")

UNIT = "__unit"  # the two that formats/unit.py adds and takes away again
SEAL = "__seal"

# The property string of a record that EscrowMQ wrote, in the order in which formats/unit.py writes
# it: (message id, first key, the text of more keys behind it, tag, the other items). All but the
# last are ASCII without control characters, quotes and backslashes. Another string does not match.
_PLAIN_TEXT = rb"([\x20\x21\x23-\x5b\x5d-\x7e]+)"
_PLAIN_KEY = rb"([\x21\x23-\x5b\x5d-\x7e]+)"
_MORE_KEYS = rb"(\x20[\x20\x21\x23-\x5b\x5d-\x7e]+)?+"
_PLAIN = (
    rb"UNIQ_KEY\x01" + _PLAIN_TEXT + rb"\x02"
    rb"(?:KEYS\x01" + _PLAIN_KEY + _MORE_KEYS + rb"\x02)?+(?:TAGS\x01" + _PLAIN_TEXT + rb"\x02)?+"
    rb"((?:(?!\x02|__unit\x01)[^\x02]+\x02)*+)\x02*+"
    rb"__unit\x01[^\x02]{40}\x02(?:__seal\x01[^\x02]{8}\x02)?+"
)  # fmt: skip
match_plain = re.compile(_PLAIN + rb"\Z").match

_BORDER = b"\x00"  # in front of and behind each of many strings
_find_plain = re.compile(_BORDER + _PLAIN + rb"(?=" + _BORDER + rb")").findall


def match_all_plain(
    strings: Sequence[bytes],
) -> list[tuple[bytes, bytes, bytes, bytes, bytes]] | None:
    """The groups of `match_plain` for each string, with b"" for what is not there; None unless all
    of them match.
    """
    text = _BORDER.join((b"", *strings, b""))
    found: list[tuple[bytes, bytes, bytes, bytes, bytes]] = _find_plain(text)
    # A match begins with a border and ends before one. With no other borders than ours, as many
    # matches as strings are one match of the whole of each.
    return found if len(found) == len(strings) and text.count(_BORDER) == len(strings) + 1 else None


ROCKETMQ_RESERVED = frozenset(
    """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
    BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION
    TRACE_ON UNIQ_KEY EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET
    1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL
    ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET INNER_MULTI_DISPATCH
    INNER_NUM INNER_BASE TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS
    TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL
    BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID CHECK_IMMUNITY_TIME_IN_SECONDS
    TRANSACTION_CHECK_TIMES
    """.split()
)

# nearly every message has no others
_ALL_RESERVED = ROCKETMQ_RESERVED | {UNIT, SEAL, CONTENT_TYPE, ORDERING_KEY}


def is_reserved(name: str) -> bool:
    """Whether the property is reserved: RocketMQ's names, and all that begin with `__`."""
    return name in ROCKETMQ_RESERVED or name.startswith("__")


def encode(items: Iterable[tuple[str, str]]) -> bytes:
    """The items as a property string.

    Names and values must be free of 0x01 and 0x02; an empty value is left out.
    """
    return "".join(
        [f"{name}{NAME_END}{value}{VALUE_END}" for name, value in items if value]
    ).encode("utf-8")


def decode(raw: bytes) -> dict[str, str]:
    """The items of a property string; of a repeated name the last, as RocketMQ reads it.

    Invalid UTF-8 becomes U+FFFD, as in Java: what a broker stored must stay readable.
    """
    properties = {}
    for item in raw.decode("utf-8", errors="replace").split(VALUE_END):
        name, _, value = item.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def keys(raw: bytes) -> list[str]:
    """Lookup keys of a message with this property string: its id first, then its keys."""
    found = dict(_LOOKED_UP_BY.findall(raw))
    texts = (found.get(b"UNIQ_KEY", b""), *found.get(b"KEYS", b"").split(b" "))
    return [text.decode("utf-8", errors="replace") for text in texts if text]


def split(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(the sender's own, the reserved ones)."""
    # As `is_reserved`, in one go: it is asked of every property of every message that is read.
    if _ALL_RESERVED.issuperset(properties):
        return {}, dict(properties)
    own = {
        name: value
        for name, value in properties.items()
        if name not in ROCKETMQ_RESERVED and name[:2] != "__"
    }
    return own, {name: value for name, value in properties.items() if name not in own}


def of_message(raw: bytes) -> tuple[str, str | None, str | None, dict[str, str], dict[str, str]]:
    """(message id, key, tag, the sender's own properties, the other reserved ones) of a property
    string.
    """
    own, reserved = split(decode(raw))
    reserved.pop(UNIT, None)
    reserved.pop(SEAL, None)
    if EMPTY in reserved:
        own |= dict.fromkeys(reserved.pop(EMPTY).split(","), "")
    return (
        reserved.pop(MESSAGE_ID, ""),
        reserved.pop(KEYS, None),
        reserved.pop(TAGS, None),
        own,
        reserved,
    )


_NAMED_FIRST = frozenset({MESSAGE_ID, KEYS, TAGS, EMPTY, UNIT, SEAL})


def split_rest(rest: bytes) -> tuple[dict[str, str], dict[str, str]] | None:
    """As `split`, of the other items of a string that `match_plain` has matched.

    None where there is more to them: a name that has been matched is repeated, or some values are
    empty.
    """
    if not rest:
        return {}, {}
    own, reserved = split(decode(rest))
    return (own, reserved) if _NAMED_FIRST.isdisjoint(reserved) else None


assert all(map(is_reserved, _ALL_RESERVED))
