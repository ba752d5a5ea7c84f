"""Promises over HTTP."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.names.registration import EndOffset, Epoch
from app.word_sets import NODE_ROLE
from storage.formats import names

_NODE = Meta(min_length=1, max_length=127, extra_json_schema={"pattern": f"^{names.NAME_PATTERN}$"})


class PromiseInput(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A primary to be."""

    epoch: Annotated[
        int,
        Meta(
            ge=1,
            le=(1 << 32) - 1,
            description="The epoch in which it is to begin.",
            extra_json_schema={"format": "int64"},
        ),
    ]
    node: Annotated[str, _NODE, Meta(description="Its name.")]
    hand_over: Annotated[
        bool,
        Meta(
            description="Has a service stop, in order, and follow that primary; false unless given."
        ),
    ] = False


class PromotionInput(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How the node is to become the service."""

    hand_over: Annotated[
        bool,
        Meta(description="Has the service that runs, if one does, stop first; false unless given."),
    ] = False
    accept_loss: Annotated[
        bool,
        Meta(
            description="Takes the place of a service that has acknowledged messages alone, too: "
            "what only that one has is lost. False unless given."
        ),
    ] = False


class Promotion(msgspec.Struct, kw_only=True):
    """A node that is the service, or is about to open its log as such."""

    node: Annotated[str, Meta(description="Name of the node.")]
    epoch: Annotated[Epoch, Meta(description="Epoch of the log in which it begins.")]
    end_offset: EndOffset


class NodePromise(msgspec.Struct, kw_only=True):
    """A node, what it has promised, and how far its log is."""

    node: Annotated[str, Meta(description="Name of the node that answers.")]
    role: Annotated[str, NODE_ROLE]
    epoch: Annotated[
        Epoch, Meta(description="It follows no primary of an earlier epoch. 0: no promise.")
    ]
    promised_to: (
        Annotated[str, Meta(description="Name of the primary of that epoch.")] | UnsetType
    ) = UNSET
    last_epoch: (
        Annotated[Epoch, Meta(description="Last epoch of its log; left out while that opens.")]
        | UnsetType
    ) = UNSET
    end_offset: EndOffset | UnsetType = UNSET
    connected: (
        Annotated[bool, Meta(description="Of a replica: does it have a connection to its service?")]
        | UnsetType
    ) = UNSET
    granted: (
        Annotated[bool, Meta(description="Whether the requested promise was made.")] | UnsetType
    ) = UNSET
    reason: Annotated[str, Meta(description="Why it was not.")] | UnsetType = UNSET
