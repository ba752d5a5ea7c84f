"""Bodies of requests that benchmarks send: a message carries 200 bytes of its user, key 16, tag 8,
payload 176.
"""

import json
import random
import string

KEY = "key-000000000001"
TAG = "tag-0001"
PAYLOAD = "".join(random.Random(7).choices(string.ascii_lowercase, k=176))


def message(durability: str | None = None) -> dict[str, object]:
    made: dict[str, object] = {"key": KEY, "tag": TAG, "payload": PAYLOAD}
    return made | ({"require_durability": durability} if durability else {})


def single(durability: str | None = None) -> str:
    return json.dumps(message(durability), separators=(",", ":"))


def line(durability: str | None = None) -> str:
    """One line of a stream."""
    return json.dumps({"id": "1", "message": message(durability)}, separators=(",", ":"))


def batch(count: int, durability: str | None = None) -> str:
    entries = [{"id": str(number), "message": message(durability)} for number in range(count)]
    return json.dumps({"atomic": True, "entries": entries}, separators=(",", ":"))


def begin(topic: str) -> str:
    """A transaction of one message."""
    messages = [{"topic": topic, "message": message()}]
    return json.dumps({"producer_group": "load", "messages": messages}, separators=(",", ":"))
