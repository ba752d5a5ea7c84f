"""What the checks are called, and what they can find.

Pure: the command line knows it without Spark.
"""

from typing import NamedTuple

CHECKS = {
    "integrity": "records, damage and times of each segment",
    "queues": "queue offsets without gap or repeat, and consume queues that say the same as the "
    "log",
    "index": "every key of every record in the key index, and linked there",
    "positions": "what the store says of how far everybody has come, held against the log",
    "halves": "every half message with what its commit needs, and none forgotten",
    "delays": "what was put off came once, and not before its time",
    "retries": "what was put off for a group, or given up, was stored; attempts never go down",
    "duplicates": "what was stored or handed out more than once, and why",
    "checkbacks": "what producers were asked, and what came of it",
    "latencies": "how long each stage took",
    "what_if": "how often producers would have been asked under other policies",
}


class Kind(NamedTuple):
    check: str
    meaning: str
    is_fault: bool = True  # counts against the exit status by default


KINDS = {
    "unverified": Kind("integrity", "a record that is whole, in an append that is not", False),
    "time_went_back": Kind("integrity", "a segment that begins before its predecessor ends", False),
    "queue_gap": Kind("queues", "queue offsets that no record has"),
    "queue_repeat": Kind("queues", "a queue offset that several records have"),
    "queue_entry_missing": Kind("queues", "a record that its consume queue does not have"),
    "queue_entry_wrong": Kind(
        "queues", "an entry of a consume queue that names another place than its record"
    ),
    "key_missing": Kind("index", "a key that the key index does not have"),
    "key_entry_wrong": Kind("index", "an entry of the key index whose record has no such key"),
    "key_unreachable": Kind(
        "index", "an entry of the key index that no lookup finds: the chain of its slot is broken"
    ),
    "index_unreadable": Kind(
        "index",
        "a file of the key index that cannot be read: its header counts more than the file holds",
    ),
    "checkpoint_ahead": Kind(
        "positions", "a time or a place in the checkpoint that lies behind the log's end"
    ),
    "position_outside": Kind(
        "positions", "a group's position that its queue does not have: below 0, or behind its end"
    ),
    "backlog_expired": Kind(
        "positions", "a group stands before the first message that its queue still has", False
    ),
    "delay_position_outside": Kind(
        "positions", "a position in a delay queue that the queue does not have"
    ),
    "positions_unreadable": Kind(
        "positions", "a file of positions that cannot be read, nor the one kept beside it"
    ),
    "half_malformed": Kind(
        "halves", "a half message that lacks what its commit needs, or lies where no half belongs"
    ),
    "half_forgotten": Kind(
        "halves",
        "a half that the broker has done with, neither decided nor stored again nor set aside: it "
        "gets no check",
    ),
    "delivered_early": Kind("delays", "delivered before it was due"),
    "delivered_late": Kind(
        "delays", "delivered later than it was due, by more than a minute", False
    ),
    "delivery_lost": Kind(
        "delays", "never delivered, though later ones were; or marked as delivered, and not there"
    ),
    "delivery_doubled": Kind("delays", "delivered more than once"),
    "delivered_though_cancelled": Kind("delays", "cancelled, and delivered all the same"),
    "attempts_went_down": Kind("retries", "handed out under a lower attempt than before"),
    "retry_lost": Kind("retries", "put off to be handed out again, and no copy of it was stored"),
    "dead_letter_lost": Kind("retries", "given up, and not among the dead letters"),
    "sent_twice": Kind(
        "duplicates", "a message id in several places of a topic: its producer sent it again", False
    ),
    "stored_twice": Kind(
        "duplicates", "a message id, made by this service, in several places of a topic"
    ),
    "handed_out_after_settled": Kind("duplicates", "handed out again though it was settled"),
    "handed_out_twice": Kind("duplicates", "handed out while another lease held it"),
    "handed_out_though_skipped": Kind(
        "duplicates", "handed out though the group's rules had passed over it"
    ),
    "asked_too_often": Kind(
        "checkbacks", "asked about again after it had answered as often as it may"
    ),
    "held_too_early": Kind("checkbacks", "held as exhausted before that"),
    "asked_though_decided": Kind("checkbacks", "asked about after it was decided"),
}
FAULTY_KINDS = tuple(name for name, kind in KINDS.items() if kind.is_fault)


def kinds_of(check: str) -> list[str]:
    return [name for name, kind in KINDS.items() if kind.check == check]
