"""Reasons as the service takes them: texts for people, on one line. Pure."""

import re

LONGEST_REASON = 500  # characters, of a message that is rejected
# What the service refuses in a text: control characters, and surrogates, which UTF-8 has not.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def valid_text(given: object, longest: int = LONGEST_REASON) -> str:
    """Make a text that the service takes of anything; empty if nothing is left."""
    try:
        text = str(given)
    except Exception as error:  # noqa: BLE001  a text of the program's own making
        text = f"(its text is not available: {type(error).__name__})"
    text = _CONTROL.sub(" ", text[: 4 * longest])  # only so much of a long text is looked at
    return _SURROGATE.sub("\ufffd", text).strip()[:longest].rstrip()


def error_text(error: BaseException, longest: int = LONGEST_REASON) -> str:
    """Make a text of an error: the name of its class, and its own text if it has one."""
    own = valid_text(error, longest)
    name = valid_text(type(error).__name__, longest)
    return (f"{name}: {own}" if own else name)[:longest].rstrip()
