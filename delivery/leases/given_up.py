"""Causes for which a group gives up a message. Pure."""

from enum import StrEnum


class Cause(StrEnum):
    """Labels of metrics and fields of the log: they stay as they are."""

    EXHAUSTED = "exhausted"  # it has used up its attempts
    REQUESTED = "requested"  # a consumer moved it to the dead letters
    DAMAGED = "damaged"  # its record cannot be read
