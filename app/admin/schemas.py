"""What operators are shown."""

import msgspec
from msgspec import UNSET, UnsetType

from app.messages.schemas import Timestamp


class Disk(msgspec.Struct, kw_only=True):
    """How full the disk of the store is, and what happens above which share of it."""

    used_ratio: float
    clean_above: float
    force_above: float
    refuse_above: float
    writable: bool
    projected_full_at: Timestamp | UnsetType = UNSET
