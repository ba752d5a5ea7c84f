"""Answers of an audit instead of a report that are not failures.

Needs no Spark.
"""


class NoSuchGroup(Exception):
    """No transaction in the log is of the producer group that was asked about."""


class NotLocal(Exception):
    """A log that the engine `local` does not read."""


class SegmentsDropped(Exception):
    """Each time that the log was read, retention dropped segments that were still to be read."""
