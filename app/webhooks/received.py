"""Results of a request: the answer, or why there is none. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

MAX_ANSWER_BYTES = 64 << 10


class AnswerTooLong(Exception):
    """The response is longer than `MAX_ANSWER_BYTES`."""


class PostFailed(Exception):
    """There was no HTTP response; the text is the reason, without internal addresses."""


class Answer(NamedTuple):
    """An HTTP response as it was received."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes
