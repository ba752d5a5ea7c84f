"""Marker rows: the outcome of each transaction in the producer's own database, and the fence that
keeps it true.

`SqlAlchemyMarkers` is in `escrowmq_client.markers.for_sqlalchemy`, which imports SQLAlchemy.
"""

from escrowmq_client.markers.base import (
    CHECK_HORIZON_MS,
    FencedError,
    MarkerCommitsAlone,
    Markers,
    Outcome,
    OutcomeUnknown,
)
from escrowmq_client.markers.for_dbapi import DbApiMarkers
from escrowmq_client.markers.statements import DEFAULT_TABLE, Dialect, Paramstyle, ddl

__all__ = [
    "CHECK_HORIZON_MS",
    "DEFAULT_TABLE",
    "DbApiMarkers",
    "Dialect",
    "FencedError",
    "MarkerCommitsAlone",
    "Markers",
    "Outcome",
    "OutcomeUnknown",
    "Paramstyle",
    "ddl",
]
