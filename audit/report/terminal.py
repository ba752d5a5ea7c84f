"""Text of a log or a database on a terminal: it is shown, and has no effect there.

An id of a broker's producer, or of a row of markers, may have any characters: control sequences of
terminals, line breaks, markup of rich.
"""

from rich.text import Text


def printable(text: str) -> str:
    """Write control characters, line breaks and changes of direction as their escapes."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one == "\t" else one.encode("unicode_escape").decode("ascii")
        for one in text
    )


def cell(text: str) -> Text:
    """Make the cell of a table in which the text has no markup."""
    return Text(printable(text))
