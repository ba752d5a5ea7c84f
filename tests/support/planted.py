"""A log in which everything that can have become of a transaction stands so many times, and the
truth about it.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from scheduler import scheduled_message
from storage.message import Message, QueueId, StoredMessage
from tests.support.written_log import Transactions, WrittenLog, stored
from txn.states import TxnState

Begun = list[StoredMessage]


def changed(message: Message, **fields: object) -> Message:
    return msgspec.structs.replace(message, **fields)


def _delayed(shop: Transactions, halves: Begun) -> list[Message]:
    """The finals as they lie in the delay topic."""
    return [
        scheduled_message.delay(
            scheduled_message.with_delay(final, delay_ms=5_000), shop.log.now_ms
        )
        for final in shop.finals(halves)
    ]


def _deliver(shop: Transactions, waiting: list[Message]) -> None:
    for message in waiting:
        waited = stored(message, queue_offset=0, stored_at_ms=shop.log.now_ms, log_offset=0)
        shop.log.append(scheduled_message.unwrap(waited))


def _commit_delayed(shop: Transactions, halves: Begun, deliveries: int = 1) -> None:
    waiting = _delayed(shop, halves)
    shop.commit(halves, waiting)
    for _ in range(deliveries):
        _deliver(shop, waiting)


def _hold_then(
    decide: Callable[[Transactions, Begun], None],
) -> Callable[[Transactions, Begun], None]:
    def both(shop: Transactions, halves: Begun) -> None:
        shop.hold(halves)
        decide(shop, halves)

    return both


def _commit(shop: Transactions, halves: Begun) -> None:
    shop.commit(halves)


def _roll_back(shop: Transactions, halves: Begun) -> None:
    shop.roll_back(halves)


def _nothing(shop: Transactions, halves: Begun) -> None:
    pass


def _resume(shop: Transactions, halves: Begun) -> None:
    shop.hold(halves)
    shop.resume(halves)


def _commit_and_again(shop: Transactions, halves: Begun) -> None:
    shop.commit(halves)
    shop.log.append(*shop.finals(halves)[-1:])


def _commit_twice(shop: Transactions, halves: Begun) -> None:
    shop.commit(halves)
    shop.commit(halves)


def _one_message_twice_another_never(shop: Transactions, halves: Begun) -> None:
    finals = shop.finals(halves)
    shop.commit(halves, [finals[0], finals[0], *finals[2:]] if len(finals) > 1 else [])


def _one_message_often_another_never(shop: Transactions, halves: Begun) -> None:
    finals = shop.finals(halves)
    shop.commit(halves, [finals[0]] * 3 + finals[2:] if len(finals) > 1 else [])


def _commit_without(shop: Transactions, halves: Begun) -> None:
    shop.commit(halves, shop.finals(halves)[1:])


def _roll_back_and_publish(shop: Transactions, halves: Begun) -> None:
    shop.decide(halves, TxnState.ROLLED_BACK, shop.finals(halves))


def _commit_then_roll_back(shop: Transactions, halves: Begun) -> None:
    shop.commit(halves)
    shop.roll_back(halves)


def _final_alone(shop: Transactions, halves: Begun) -> None:
    shop.log.append(*shop.finals(halves))


def _foreign_id(shop: Transactions, halves: Begun) -> None:
    """In the last final's place stands another message, which nobody began."""
    finals = shop.finals(halves)
    shop.commit(
        halves, [*finals[:-1], changed(finals[-1], message_id=f"msg_foreign_{shop.log.end}")]
    )


def _put_back_again(shop: Transactions, halves: Begun) -> None:
    """Those that wait, stored again before retention drops the segment they wait in; it has not
    gone yet.
    """
    waiting = _delayed(shop, halves)
    shop.commit(halves, waiting)
    for message in waiting:
        waited = stored(message, queue_offset=0, stored_at_ms=shop.log.now_ms, log_offset=0)
        shop.log.append(
            scheduled_message.put_back(
                waited, shop.log.now_ms, scheduled_message.CarriedState(revision=2)
            )
        )


def _half_again(shop: Transactions, halves: Begun) -> None:
    """Stored again, as before its segment expires."""
    shop.log.append(*halves)
    shop.commit(halves)


def _alter(shop: Transactions, halves: Begun) -> None:
    shop.commit(halves, [changed(final, body=b"another") for final in shop.finals(halves)])


def _name_another(shop: Transactions, halves: Begun) -> None:
    shop.commit(
        halves,
        [
            changed(final, prepared_log_offset=final.prepared_log_offset + 8)
            for final in shop.finals(halves)
        ],
    )


# name -> (verdict, what is done after the begin). Each stands with one message and with three.
FATES: dict[str, tuple[str, Callable[[Transactions, Begun], None]]] = {
    "committed": ("committed_once", _commit),
    "delayed_again": ("committed_once", _put_back_again),
    "half_again": ("committed_once", _half_again),
    "delayed": ("committed_once", _commit_delayed),
    "delayed_still": ("committed_once", lambda shop, halves: _commit_delayed(shop, halves, 0)),
    "resumed_committed": (
        "resolved_late",
        lambda shop, halves: (_resume(shop, halves), shop.commit(halves)),
    ),
    "rolled_back": ("rolled_back_clean", _roll_back),
    "undecided": ("undecided", _nothing),
    "final_alone": ("undecided", _final_alone),
    "resumed": ("undecided", _resume),
    "held": ("undecided_held", lambda shop, halves: shop.hold(halves)),
    "late": ("resolved_late", _hold_then(_commit)),
    "late_back": ("resolved_late", _hold_then(_roll_back)),
    "again": ("committed_duplicated", _commit_and_again),
    "twice": ("committed_duplicated", _commit_twice),
    "delivered_twice": (
        "committed_duplicated",
        lambda shop, halves: _commit_delayed(shop, halves, 2),
    ),
    "twice_and_never": ("final_missing", _one_message_twice_another_never),
    "often_and_never": ("final_missing", _one_message_often_another_never),
    "missing": ("final_missing", _commit_without),
    "foreign_id": ("final_missing", _foreign_id),
    "back_but_published": ("rolled_back_but_delivered", _roll_back_and_publish),
    "back_after_commit": ("rolled_back_but_delivered", _commit_then_roll_back),
    "altered": ("committed_once", _alter),
    "wrong_half": ("committed_once", _name_another),
}
FLAGGED = {
    "altered": "altered",
    "wrong_half": "wrong_half",
    "final_alone": "undecided_but_published",
}


def plant(
    root: Path, *, times: int, seed: int = 1, first_offset: int = 0, segment_bytes: int = 1 << 18
) -> tuple[WrittenLog, dict[str, str]]:
    """The log, closed, and the verdict of every transaction in it."""
    randomness = Random(seed)
    log = WrittenLog(root, segment_bytes=segment_bytes, first_offset=first_offset)
    shops = [
        Transactions(log, topic="orders", group="shop"),
        Transactions(log, topic="emails", group="mailer"),
    ]
    plan = [
        (f"{name}.{count}.{number}", name, count)
        for name in FATES
        for count in (1, 3)
        for number in range(times)
    ]
    randomness.shuffle(plan)
    truth: dict[str, str] = {}
    begun: list[tuple[str, str, Transactions, Begun]] = []
    for transaction_id, name, count in plan:
        shop = randomness.choice(shops)
        begun.append((transaction_id, name, shop, shop.begin(transaction_id, count)))
        truth[transaction_id] = FATES[name][0]
        log.append(*[_plain(f"{log.end}_{number}") for number in range(randomness.randrange(1, 3))])
        if len(begun) > 5:
            _meet_fate(begun.pop(randomness.randrange(len(begun))))
    for one in begun:
        _meet_fate(one)
    for number in range(times):
        truth |= _without_halves(log, shops[0], number)
    log.close()
    return log, truth


def _meet_fate(one: tuple[str, str, Transactions, Begun]) -> None:
    _, name, shop, halves = one
    FATES[name][1](shop, halves)


def _without_halves(log: WrittenLog, shop: Transactions, number: int) -> dict[str, str]:
    """Decisions about what was never stored here.

    Where the log begins later than at 0, some lie before its beginning.
    """
    gone = "unverifiable_retention" if log.first_offset else "op_without_half"
    elsewhere = shop.log.now_ms  # an offset that no half has
    stray = [
        changed(half, log_offset=log.end - 8, queue_offset=elsewhere + number)
        for half in shop.unstored(f"stray.{number}")
    ]
    shop.commit(stray)
    back = [
        changed(half, queue_offset=elsewhere + number)
        for half in shop.unstored(f"stray_back.{number}")
    ]
    shop.roll_back(back)
    old = [
        changed(half, log_offset=max(log.first_offset - 800, 8), queue_offset=0)
        for half in shop.unstored(f"old.{number}")
    ]
    shop.commit(old)
    return {
        f"stray.{number}": "op_without_half",
        f"stray_back.{number}": "op_without_half",
        f"old.{number}": gone,
    }


def _plain(name: str) -> Message:
    return Message(
        queue=QueueId("orders", 0),
        message_id=f"msg_plain_{name}",
        body=b"plain",
        born_at_ms=1_700_000_000_000,
    )
