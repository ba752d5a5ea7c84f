"""Lines out of pieces that begin and end anywhere."""

from hypothesis import given
from hypothesis import strategies as st

from app.messages.splitter import LineSplitter

LIMIT = 8


@given(pieces=st.lists(st.binary(max_size=20).map(lambda piece: piece.replace(b"\x00", b"\n"))))
def test_lines_are_those_of_all_pieces_together_but_for_blank_ones_and_long_ones_are_none(pieces):
    splitter = LineSplitter(LIMIT)

    found = [line for piece in pieces for line in splitter.feed(piece)] + splitter.end()

    *whole, last = b"".join(pieces).split(b"\n")
    expected = [*whole, last] if last else whole
    assert found == [
        line if len(line) <= LIMIT else None
        for line in expected
        if line.strip() or len(line) > LIMIT
    ]
