"""What an audit answers instead of a report, where it is not that something went wrong.

Needs no Spark.
"""


class NoSuchGroup(Exception):
    """No transaction in the log is of the producer group that was asked about."""


class NotLocal(Exception):
    """A log that the engine `local` does not read."""
