"""Texts of errors for a person: `storage.errors.reason_of`."""

import errno
from pathlib import Path

import pytest

from storage.errors import Backpressure, CorruptRecord, reason_of

PATH = Path("/var/lib/escrowmq/store/commitlog/00000000000000000000")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Backpressure("many documents wait to be checked"), "many documents wait to be checked"),
        (
            CorruptRecord(PATH, 512, "the sums differ"),
            "00000000000000000000 at log offset 512: the sums differ",
        ),
        (CorruptRecord(None, 7, "it is gone"), "log offset 7: it is gone"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/var/lib/escrowmq/promise.json"),
            "/var/lib/escrowmq/promise.json: No space left on device",
        ),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("the host does not answer"), "OSError: the host does not answer"),
        (KeyError("id"), "KeyError: 'id'"),
    ],
)
def test_a_reason_says_in_words_what_failed_and_names_the_class_where_words_may_be_missing(
    error, text
):
    assert reason_of(error) == text


def test_a_reason_is_as_long_as_a_report_has_room_for():
    assert reason_of(ValueError("x" * 5_000)) == ("ValueError: " + "x" * 5_000)[:1_000]
