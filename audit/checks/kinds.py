"""The names of the checks, and the kinds of findings of each.

Pure: the command line reads it without Spark.
"""

from typing import NamedTuple

CHECKS = {
    "integrity": "records, damage and times of each segment",
    "queues": "queue offsets without a gap or a duplicate; consume queues that match the log",
    "index": "every key of every record is in the key index, and a lookup finds it",
    "positions": "the checkpoint and the offsets of groups and delay queues, compared with the log",
    "halves": "every half message has what its commit needs, and none is forgotten",
    "delays": "every delayed message is delivered once, and not before its time",
    "retries": "every retry and dead letter is stored; attempts never go down",
    "duplicates": "messages that are stored or delivered more than once, and why",
    "checkbacks": "the checks that producers received, and their results",
    "latencies": "the time that each stage took",
    "what_if": "the number of checks that producers would receive under other policies",
}


class Kind(NamedTuple):
    check: str
    meaning: str
    is_fault: bool = True  # counts against the exit status by default


KINDS = {
    "unverified": Kind("integrity", "a whole record in an append that is not whole", False),
    "time_went_back": Kind("integrity", "a segment that begins before its predecessor ends", False),
    "queue_gap": Kind("queues", "queue offsets without a record"),
    "queue_repeat": Kind("queues", "a queue offset with several records"),
    "queue_entry_missing": Kind("queues", "a record that is missing in its consume queue"),
    "queue_entry_wrong": Kind(
        "queues", "an entry of a consume queue that does not point to its record"
    ),
    "key_missing": Kind("index", "a key that is missing in the key index"),
    "key_entry_wrong": Kind("index", "an entry of the key index whose record has no such key"),
    "key_unreachable": Kind(
        "index", "an entry of the key index that no lookup finds: the chain of its slot is broken"
    ),
    "index_unreadable": Kind(
        "index",
        "a file of the key index that cannot be read: its header counts more than the file holds",
    ),
    "checkpoint_ahead": Kind(
        "positions", "a time or a log offset in the checkpoint after the end of the log"
    ),
    "position_outside": Kind(
        "positions", "an offset of a group below 0 or after the end of its queue"
    ),
    "backlog_expired": Kind(
        "positions",
        "the offset of a group is before the first message that its queue still has",
        False,
    ),
    "delay_position_outside": Kind(
        "positions", "an offset of a delay queue below 0 or after its end"
    ),
    "positions_unreadable": Kind(
        "positions", "a file of offsets that cannot be read, and neither can its .bak"
    ),
    "half_malformed": Kind(
        "halves", "a half message without what its commit needs, or in another queue"
    ),
    "half_forgotten": Kind(
        "halves",
        "a half message that the broker has passed, and that is neither decided nor stored again "
        "nor discarded: it gets no check",
    ),
    "delivered_early": Kind("delays", "delivered before it was due"),
    "delivered_late": Kind("delays", "delivered more than a minute after it was due", False),
    "delivery_lost": Kind(
        "delays", "not delivered, though later ones are; or marked as delivered, and missing"
    ),
    "delivery_doubled": Kind("delays", "delivered more than once"),
    "delivered_though_cancelled": Kind("delays", "cancelled, and delivered nevertheless"),
    "attempts_went_down": Kind(
        "retries", "delivered to a consumer with a lower attempt than before"
    ),
    "retry_lost": Kind("retries", "rejected by a consumer, and no copy for its retry is stored"),
    "dead_letter_lost": Kind("retries", "given up, and missing among the dead letters"),
    "sent_twice": Kind(
        "duplicates",
        "a message id at several offsets of a topic: its producer sent it again",
        False,
    ),
    "stored_twice": Kind(
        "duplicates", "a message id, made by this service, at several offsets of a topic"
    ),
    "handed_out_after_settled": Kind(
        "duplicates", "delivered to a consumer again after it was settled"
    ),
    "handed_out_twice": Kind("duplicates", "delivered to a second consumer while it was leased"),
    "handed_out_though_skipped": Kind(
        "duplicates", "delivered to a consumer after the rules of the group had skipped it"
    ),
    "asked_too_often": Kind("checkbacks", "checked again after the maximum number of answers"),
    "held_too_early": Kind("checkbacks", "held as exhausted before the maximum number of answers"),
    "asked_though_decided": Kind("checkbacks", "checked after it was decided"),
}
FAULTY_KINDS = tuple(name for name, kind in KINDS.items() if kind.is_fault)


def kinds_of(check: str) -> list[str]:
    return [name for name, kind in KINDS.items() if kind.check == check]
