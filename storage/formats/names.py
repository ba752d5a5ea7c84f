"""Names of topics, groups and files: those that a client may use, and those that are reserved.

A name that a client may use is safe as a folder name: letters, digits, `_`, `.`, `-`, no leading
dot, at most 127 characters. RocketMQ's own names pass that rule or carry a `%`; they are reserved
all the same. Source: RocketMQ TopicValidator, MixAll.
"""

import re

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
HELD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
OWN_PREFIX = "rmq_sys_escrowmq_"  # of topics that no broker has
CHECK_TOPIC = "rmq_sys_escrowmq_checks"
OFFSET_TOPIC = "rmq_sys_escrowmq_offsets"
IDEMPOTENCY_TOPIC = "rmq_sys_escrowmq_sent_keys"
SCHEDULE_MARK_TOPIC = "rmq_sys_escrowmq_schedules"
CRON_TOPIC = "rmq_sys_escrowmq_cron"
LEASE_TOPIC = "rmq_sys_escrowmq_leases"
QUEUE_END_TOPIC = "rmq_sys_escrowmq_queue_ends"
LOST_TOPIC = "rmq_sys_escrowmq_lost"
REQUEST_TOPIC = "rmq_sys_escrowmq_requests"
MEMBER_TOPIC = "rmq_sys_escrowmq_members"
EPOCH_TOPIC = "rmq_sys_escrowmq_epochs"
TIMER_TOPIC = "rmq_sys_wheel_timer"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
# whose messages a broker stores again: halves that it asks about, and messages that come due
STORED_AGAIN = frozenset({HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})
# in whose name a broker notes how far it has asked about half messages
ASKING_GROUP = "CID_RMQ_SYS_TRANS"

CLUSTER = "DefaultCluster"
REPLY_TOPIC = f"{CLUSTER}_REPLY_TOPIC"

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
LIGHT_QUEUE_PREFIX = "%LMQ%"  # of queues of a broker whose entries point to records of other topics

# that a client may use, where it is not reserved
NAME_PATTERN = "[A-Za-z0-9_-][A-Za-z0-9_.-]{0,126}"
_NAME = re.compile(NAME_PATTERN)
_RESERVED_PREFIXES = ("rmq_sys_", RETRY_PREFIX, DEAD_LETTER_PREFIX, "CID_RMQ_SYS_")
_RESERVED_NAMES = frozenset(
    {
        "TBW102",
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        HALF_TOPIC,
        OP_TOPIC,
        "RMQ_SYS_TRACE_TOPIC",
        HELD_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
        CLUSTER,
        REPLY_TOPIC,
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_SYS_RMQ_TRANS",
    }
)

FILE_NAME_DIGITS = 20


def is_valid_name(name: str) -> bool:
    """May a client use this as the name of a topic, a group or a transaction, reserved ones
    apart?
    """
    return _NAME.fullmatch(name) is not None


def is_reserved_name(name: str) -> bool:
    """Whether the name is reserved for EscrowMQ or RocketMQ."""
    return name in _RESERVED_NAMES or name.startswith(_RESERVED_PREFIXES)


def is_stored_name(name: str) -> bool:
    """May this be a topic's folder?

    A client's name, or one of the reserved forms around such a name.
    """
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    # A RocketMQ group name may be as long as 255 characters; its retry topic then makes a version 2
    # record.
    return len(name) <= 255 and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name) is not None


def retry_topic(group: str) -> str:
    """The topic of a group's messages that are to be redelivered."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic of a group's messages that used up their attempts."""
    return DEAD_LETTER_PREFIX + group


def file_name(base_offset: int) -> str:
    """The name of the file whose first byte has this address: 20 decimal digits."""
    return f"{base_offset:0{FILE_NAME_DIGITS}d}"


def base_offset(name: str) -> int | None:
    """The address of the first byte of a file by its name; None where the name is not of
    that form.
    """
    if len(name) == FILE_NAME_DIGITS and name.isascii() and name.isdigit():
        return int(name)
    return None
