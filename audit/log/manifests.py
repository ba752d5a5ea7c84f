"""The manifest beside a file that was made of a segment, as JSON: the segment, and that the file is
whole. Written last.
"""

import json
from typing import Any

ENDING = ".json"


def parse(raw: bytes, size: int, *, size_in: str) -> dict[str, Any] | None:
    """The manifest of a file of this size; None where it does not parse, or states another size.

    `size_in`: the field that states it.
    """
    try:
        manifest = json.loads(raw)
    except ValueError:
        return None
    is_whole = isinstance(manifest, dict) and manifest.get(size_in) == size
    return manifest if is_whole else None
