"""Fields of many records at once: what numpy finds is what one record after another says."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from storage.formats import skimmed
from storage.local.queues.replay import tags_code

_PIECES = st.sampled_from(
    [
        b"\x02TAGS\x01",
        b"TAGS\x01",
        b"TAGS",
        b"\x02",
        b"\x01",
        b"red",
        b"KEYS\x01k\x02",
        "größe".encode(),
        b"\xff",
        b"\x00",
        *(b"x" * count for count in (1, 30, 31, 32, 33)),
    ]
)
_STRINGS = st.lists(_PIECES, max_size=8).map(b"".join)


@example([(b"", b"TAGS"), (b"\x01red\x02", b"x" * 40)])
@example([(b"", b"\x02TAGS\x01red\x02TAGS"), (b"\x01blue\x02", b"")])
@given(st.lists(st.tuples(_STRINGS, _STRINGS), min_size=1, max_size=12))
def test_the_hashes_of_tags_are_those_of_one_string_after_another(pairs):
    """Between the property strings lies what may look like one."""
    window, begins, ends = b"a record", [], []
    for between, own in pairs:
        window += between
        begins.append(len(window))
        window += own
        ends.append(len(window))

    found = skimmed.tag_hashes(window, np.array(begins), np.array(ends))

    assert found.tolist() == [tags_code(b"", own, 0) for _, own in pairs]
