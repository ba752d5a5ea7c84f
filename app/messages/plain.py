"""Plain messages: a body as text or JSON and, at most, a key and a tag, for a topic without a
schema.

Most messages are plain. They are checked and made ready in a tenth of the time that `build.py`
takes, which makes the same of them; a message that is not plain, or wrong, is left to it.
"""

from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from app.encoding import codec
from app.messages.payload import JSON
from app.problems import Refusal
from app.registry.topics import MessageType, Topic
from app.word_sets import Durability
from storage.formats import queue_entry
from storage.formats.properties import CONTENT_TYPE

_SHORT = 63  # characters that are never more than the 255 bytes that a key or a tag may have
JSON_PROPERTY = f"{CONTENT_TYPE}\x01{JSON}\x02"

Short = Annotated[str, Meta(min_length=1, max_length=_SHORT)]


class PlainInput(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The common fields of `MessageInput`."""

    payload: str | UnsetType = UNSET
    json: Raw | UnsetType = UNSET
    key: Short | UnsetType = UNSET
    tag: Short | UnsetType = UNSET


class PlainSend(PlainInput, forbid_unknown_fields=True, gc=False):
    """A plain message with the durability that it asks for."""

    require_durability: Durability | UnsetType = UNSET


class Plain(msgspec.Struct, gc=False):
    """A struct: a named tuple takes three times as long to make.

    `attributes`: of the property string, behind the message's id. `tags_code`: for the queue entry.
    """

    body: bytes
    attributes: str
    tags_code: int


def plain_of(given: PlainInput, topic: Topic, kind: MessageType, *, depth: int) -> Plain | None:
    """The message; None if `build.py` has to examine it. `depth`: its depth in the request."""
    settings = topic.settings
    if topic.payload_schema is not None or kind not in settings.message_types:
        return None
    key, tag, payload, attributes, tags_code = given.key, given.tag, given.payload, "", 0
    if tag is not UNSET:
        known = _tag_item(tag)
        if known is None:
            return None
        attributes, tags_code = known
    if key is not UNSET:
        if not key.isprintable() or " " in key:
            return None
        attributes = f"KEYS\x01{key}\x02{attributes}"
    if given.json is UNSET:
        if payload is UNSET:
            return None
        body = payload.encode()
    elif payload is UNSET:
        try:
            body = codec.serialise(bytes(given.json), depth=depth)
        except Refusal:
            return None
        attributes += JSON_PROPERTY
    else:
        return None
    if len(body) > settings.max_message_bytes:
        return None
    return Plain(body, attributes, tags_code)


@lru_cache(maxsize=4096)
def _tag_item(tag: str) -> tuple[str, int] | None:
    """The property item of a tag, and its hash for the queue entry; None where the tag is not
    plain.
    """
    if not tag.isprintable() or " " in tag or "|" in tag:
        return None
    return f"TAGS\x01{tag}\x02", queue_entry.tag_hash(tag)
