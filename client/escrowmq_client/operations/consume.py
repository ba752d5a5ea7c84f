"""Operations of consuming: receive messages under a lease, and settle them."""

from collections.abc import Iterable, Sequence
from typing import Literal

from escrowmq_client.call import (
    EVENTS,
    Call,
    all_accepted,
    decoded,
    fields,
    json_headers,
    new_id,
    nothing,
    query,
)
from escrowmq_client.models.consume import (
    AckEntry,
    DeadLetterEntry,
    ExtendEntry,
    NackEntry,
    ReceivedMessage,
    ReceivedMessages,
    SettleResults,
)
from escrowmq_client.models.messages import PayloadView

_KEEP_ALIVE_MS = 60_000  # the service writes something to a stream every 15 s


def receive_messages(
    group: str,
    *,
    max_messages: int | None = None,
    max_bytes: int | None = None,
    wait_ms: int = 0,
    lease_ms: int | None = None,
    worker: str | None = None,
    attempt_id: str | None = None,
    payload: PayloadView | None = None,
    format: Literal["cloudevents", "message"] | None = None,  # noqa: A002  the word for it
) -> Call[ReceivedMessages]:
    """Receive messages under a lease.

    A message that is not settled before its lease ends comes again. With `wait_ms` the answer waits
    for something new. The `attempt_id` makes the call repeatable
    after a lost answer: the same messages come under the same leases. The client makes one. With
    `format="cloudevents"` they are in `events`, as CloudEvents.

    Raises NotFound (group_not_found).
    """
    return Call(
        "receiveMessages",
        "POST",
        "/v1/groups/{group}/receive",
        decoded(ReceivedMessages),
        parts={"group": group},
        headers=json_headers(),
        body=fields(
            max_messages=max_messages,
            max_bytes=max_bytes,
            wait_ms=wait_ms or None,
            lease_ms=lease_ms,
            worker=worker,
            attempt_id=attempt_id or new_id(),
            payload=payload,
            format=format,
        ),
        wait_ms=wait_ms,
    )


def stream_call(
    group: str,
    credit: int | None,
    lease_ms: int | None,
    worker: str | None,
    payload: PayloadView | None,
) -> Call[None]:
    """Make the call whose answer is a stream of events."""
    return Call(
        "streamMessages",
        "GET",
        "/v1/groups/{group}/stream",
        nothing,
        parts={"group": group},
        query=query(credit=credit, lease_ms=lease_ms, worker=worker, payload=payload),
        headers={"Accept": EVENTS},
        wait_ms=_KEEP_ALIVE_MS,
    )


def ack_messages(
    group: str,
    entries: Iterable[ReceivedMessage | AckEntry | str],
    *,
    member_id: str | None = None,
    generation: int | None = None,
) -> Call[SettleResults]:
    """Acknowledge messages: they are never delivered to the group again.

    Each entry is a message as it was received, or its receipt handle. The acknowledgement is on
    disk when the call returns. Members of a group, which commit offsets instead, are refused; with
    a `member_id` a former one learns that it is none any more (fenced).

    Raises Refused if the lease of a message had ended (LeaseLost); the others are acknowledged.
    """
    return _settle(
        "ackMessages",
        "/v1/groups/{group}/ack",
        group,
        [entry if isinstance(entry, AckEntry) else AckEntry(handle_of(entry)) for entry in entries],
        member_id=member_id,
        generation=generation,
    )


def nack_messages(
    group: str,
    entries: Iterable[ReceivedMessage | NackEntry | str],
    *,
    delay_ms: int | None = None,
    reason: str | None = None,
    unprocessed: bool = False,
) -> Call[SettleResults]:
    """Reject messages: they come again after `delay_ms`, or the group's backoff.

    After its last attempt a message becomes a dead letter. With `unprocessed` the attempt does not
    count: messages that you received and did not begin come again, at once or after `delay_ms`, and
    do not become dead letters. `delay_ms`, `reason` and `unprocessed` hold for each entry that is
    not a NackEntry with its own.

    Raises Refused if the lease of a message had ended (LeaseLost); the others are rejected.
    """
    return _settle(
        "nackMessages",
        "/v1/groups/{group}/nack",
        group,
        [
            entry
            if isinstance(entry, NackEntry)
            else NackEntry(handle_of(entry), delay_ms, reason, unprocessed)
            for entry in entries
        ],
    )


def extend_leases(
    group: str,
    entries: Iterable[ReceivedMessage | ExtendEntry | str],
    *,
    lease_ms: int | None = None,
) -> Call[SettleResults]:
    """Extend leases, counted from now. The receipt handles stay the same.

    `lease_ms` holds for each entry that is not an ExtendEntry with its own; without it the group's.

    Raises Refused if a lease had ended (LeaseLost); the others are extended.
    """
    return _settle(
        "extendLeases",
        "/v1/groups/{group}/extend",
        group,
        [
            entry if isinstance(entry, ExtendEntry) else ExtendEntry(handle_of(entry), lease_ms)
            for entry in entries
        ],
    )


def dead_letter_messages(
    group: str,
    entries: Iterable[ReceivedMessage | DeadLetterEntry | str],
    *,
    reason: str | None = None,
) -> Call[SettleResults]:
    """Move messages to the dead letters of the group, whatever their number of attempts.

    Raises Refused if the lease of a message had ended (LeaseLost); the others are moved.
    """
    return _settle(
        "deadLetterMessages",
        "/v1/groups/{group}/dead-letter",
        group,
        [
            entry
            if isinstance(entry, DeadLetterEntry)
            else DeadLetterEntry(handle_of(entry), reason)
            for entry in entries
        ],
    )


def handle_of(entry: ReceivedMessage | str) -> str:
    """Return the receipt handle of a message."""
    return entry if isinstance(entry, str) else entry.receipt_handle


def _settle(
    operation: str,
    route: str,
    group: str,
    entries: Sequence[AckEntry | NackEntry | ExtendEntry | DeadLetterEntry],
    **member: str | int | None,
) -> Call[SettleResults]:
    return Call(
        operation,
        "POST",
        route,
        all_accepted(SettleResults, "receipt_handle", [entry.receipt_handle for entry in entries]),
        parts={"group": group},
        headers=json_headers(),
        body=fields(entries=entries, **member),
    )
