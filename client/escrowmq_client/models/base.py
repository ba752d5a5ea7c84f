"""The two kinds of models: what a caller makes, and what the service returns."""

from datetime import datetime
from typing import Annotated

import msgspec

Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time that the client compares with others, so that it must have an offset."""


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """Part of a request; a field that is None (or UNSET) is not sent."""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a response; a field that the service did not send is None.

    Fields that this version of the client does not know are ignored.
    """
