"""Page tokens: opaque texts with the position after which a list continues. Writes in between move
nothing.
"""

import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from msgspec import Meta

from app.problems import Refusal

T = TypeVar("T")

PageSize = Annotated[
    int,
    Meta(ge=1, le=1_000, description="Maximum number of items; a page of large items has fewer."),
]
PageToken = Annotated[
    str, Meta(max_length=1_024, description="The `next_page_token` of the previous page.")
]
DEFAULT_PAGE_SIZE = 100
PAGE_BYTES = 4 << 20  # of the items of a page, unless it is a single one


def fitting(
    items: Sequence[T], page_size: int, size_of: Callable[[T], int], *, max_bytes: int = PAGE_BYTES
) -> int:
    """How many of these items, where there are any, make a page: the others come with the
    next one.
    """
    byte_count = 0
    for number, item in enumerate(items[:page_size]):
        byte_count += size_of(item)
        if byte_count > max_bytes and number:
            return number
    return min(len(items), page_size)


def encode_token(kind: str, position: str) -> str:
    """`kind`: which list the token belongs to."""
    return (
        binascii.b2a_base64(f"{kind}:{position}".encode(), newline=False)
        .decode()
        .translate(_TO_URL)
        .rstrip("=")
    )


def decode_token(kind: str, token: str) -> str:
    """The position. Raises Refusal invalid_page_token."""
    try:
        padded = token.translate(_FROM_URL) + "=" * (-len(token) % 4)
        found, _, position = binascii.a2b_base64(padded, strict_mode=True).decode().partition(":")
    except ValueError:
        found = position = ""
    if found != kind or not position:
        raise Refusal("invalid_page_token")
    return position


def decode_number_token(kind: str, token: str) -> int:
    """The position, where it is a number. Raises Refusal invalid_page_token."""
    position = decode_token(kind, token)
    if not (position.isascii() and position.isdigit() and len(position) < 20):
        raise Refusal("invalid_page_token")
    return int(position)


_TO_URL = str.maketrans("+/", "-_")
_FROM_URL = str.maketrans("-_", "+/")
