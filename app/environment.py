"""The form of settings that come from the environment."""

import json
from typing import Any


def from_json(value: Any) -> Any:
    """A list inside a section comes as text, which pydantic-settings decodes at the top level only.

    Raises ValueError.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("is not JSON") from None
