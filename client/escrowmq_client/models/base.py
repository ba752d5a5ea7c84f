"""The two kinds of models: what a caller makes, and what the service returns."""

import msgspec


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """Part of a request; a field that is None (or UNSET) is not sent."""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a response; a field that the service did not send is None.

    Fields that this version of the client does not know are ignored.
    """
