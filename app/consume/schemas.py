"""What goes in and out: messages under leases, and what becomes of them."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.messages.schemas import MAX_BODY_BYTES, MAX_DELAY_MS, MAX_ENTRIES, Message, PayloadForm, Timestamp, WaitMs
from app.problems import Problem

LeaseMs = Annotated[int, Meta(ge=100, le=43_200_000, description="For how long messages are lent, in milliseconds.")]
Handle = Annotated[str, Meta(min_length=1, max_length=1_024, description="As it came with the message.")]
Reason = Annotated[str, Meta(min_length=1, max_length=500, description="For people; kept with the message.")]


class ReceiveInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How many messages, how long to wait for one, and for how long they are lent."""

    max_messages: Annotated[int, Meta(ge=1, le=1_000)] = 32
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_BODY_BYTES, description="Of bodies; one message always comes.")] = 1 << 20
    wait_ms: WaitMs = 0
    lease_ms: LeaseMs | UnsetType = UNSET
    worker: (
        Annotated[str, Meta(min_length=1, max_length=255, description="Who takes them; kept with the lease.")] | UnsetType
    ) = UNSET
    attempt_id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=255,
                description="Makes a lost answer repeatable: the same one again gets the same messages under the same leases.",
            ),
        ]
        | UnsetType
    ) = UNSET
    payload: Annotated[PayloadForm, Meta(description="How bodies are written; auto: utf8 where they are UTF-8.")] = "auto"


class ReceivedMessage(Message, kw_only=True, gc=False):
    """A message that is lent. Its place is that of its first delivery, also when it comes again."""

    attempt: Annotated[int, Meta(description="How often it has been handed out, from 1.")]
    receipt_handle: Annotated[str, Meta(description="Settles it; good for this lease alone.")]
    lease_expires_at: Timestamp
    request_id: Annotated[str, Meta(description="Of a request: what a reply names.")] | UnsetType = UNSET
    reply_by: Annotated[Timestamp, Meta(description="Of a request: until then a reply is in time.")] | UnsetType = UNSET


class ReceivedMessages(msgspec.Struct, kw_only=True):
    """Messages under leases; empty when there is none."""

    server_time: Annotated[Timestamp, Meta(description="To compare lease_expires_at with.")]
    messages: list[ReceivedMessage]


class AckEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message that is done with."""

    receipt_handle: Handle


class AckInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages that are done with."""

    entries: Annotated[list[AckEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]


class NackEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to be handed out again."""

    receipt_handle: Handle
    delay_ms: (
        Annotated[int, Meta(ge=0, le=MAX_DELAY_MS, description="When to hand it out again; the group's backoff if left out.")]
        | UnsetType
    ) = UNSET
    reason: Reason | UnsetType = UNSET


class NackInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages to be handed out again, or to be given up where that was their last attempt."""

    entries: Annotated[list[NackEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]


class ExtendEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message that is needed for longer."""

    receipt_handle: Handle
    lease_ms: (
        Annotated[int, Meta(ge=100, le=43_200_000, description="From now on; as long as the group lends them if left out.")]
        | UnsetType
    ) = UNSET


class ExtendInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages that are needed for longer."""

    entries: Annotated[list[ExtendEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]


class DeadLetterEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to be given up."""

    receipt_handle: Handle
    reason: Reason | UnsetType = UNSET


class DeadLetterInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Messages to be given up."""

    entries: Annotated[list[DeadLetterEntry], Meta(min_length=1, max_length=MAX_ENTRIES)]


class SettleResult(msgspec.Struct, kw_only=True, gc=False):
    """What became of one entry."""

    receipt_handle: str
    status: int
    lease_expires_at: Timestamp | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class SettleResults(msgspec.Struct, kw_only=True):
    """What became of the entries, in their order."""

    accepted: int
    rejected: int
    results: list[SettleResult]
