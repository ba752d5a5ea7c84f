"""What cannot be taken is refused with the status, the code and the field that the contract names,
and never with a 5xx.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from tests.support.http import assert_problem, ok

MESSAGE = {"payload": "x"}
CHECK_ID = "chk_1_nobody"
DEEP = 10_000


class Case(NamedTuple):
    """A request that is refused.

    `{topic}` and `{open}` stand for a topic and an open transaction that exist.
    """

    name: str
    method: str
    path: str
    body: Any = None  # bytes are sent as they are, anything else as JSON
    headers: Mapping[str, str] = {}
    status: int = 422
    code: str = "validation_failed"
    pointer: str | None = None


def send(name: str, message: Any, pointer: str | None = None, **expected: Any) -> Case:
    return Case(
        f"send {name}", "POST", "/v1/topics/{topic}/messages", message, pointer=pointer, **expected
    )


def begin(
    name: str,
    pointer: str | None = None,
    status: int = 422,
    code: str = "validation_failed",
    **fields: Any,
) -> Case:
    body = {
        "producer_group": "shop",
        "messages": [{"topic": "{topic}", "message": MESSAGE}],
        **fields,
    }
    body = {field: value for field, value in body.items() if value is not ...}
    return Case(
        f"begin {name}", "POST", "/v1/transactions", body, status=status, code=code, pointer=pointer
    )


def raw(name: str, headers: dict[str, str], pointer: str, **expected: Any) -> Case:
    return Case(
        f"raw {name}",
        "POST",
        "/v1/topics/{topic}/messages/raw",
        b"x",
        headers,
        pointer=pointer,
        **expected,
    )


def pull(name: str, query: str, pointer: str | None = None, **expected: Any) -> Case:
    return Case(
        f"pull {name}",
        "GET",
        f"/v1/topics/{{topic}}/queues/0/messages?{query}",
        pointer=pointer,
        **expected,
    )


def create(name: str, pointer: str, **fields: Any) -> Case:
    return Case(
        f"create {name}", "POST", "/v1/topics", {"topic": "never-made", **fields}, pointer=pointer
    )


def malformed(name: str, body: bytes) -> Iterator[Case]:
    """The same nonsense on every route that reads JSON."""
    for method, path in JSON_ROUTES:
        yield Case(
            f"{name}, {method} {path}", method, path, body, status=400, code="malformed_request"
        )


JSON_ROUTES = (
    ("POST", "/v1/topics"),
    ("POST", "/v1/topics/{topic}/messages"),
    ("POST", "/v1/topics/{topic}/messages/batch"),
    ("POST", "/v1/transactions"),
    ("POST", "/v1/transactions/{open}/commit"),
    ("POST", "/v1/transactions/{open}/rollback"),
    ("POST", "/v1/transactions/{open}/resolve"),
    ("POST", "/v1/transactions/{open}/resume"),
    ("PUT", "/v1/producer-groups/shop"),
    ("POST", "/v1/producer-groups/shop/checks/receive"),
    ("POST", "/v1/producer-groups/shop/checks/answer"),
    ("PUT", "/v1/groups/billing/offsets"),
)
GET_ROUTES = (
    "/v1/topics",
    "/v1/topics/{topic}",
    "/v1/topics/{topic}/queues",
    "/v1/topics/{topic}/queues/0/offset",
    "/v1/topics/{topic}/queues/0/messages",
    "/v1/transactions",
    "/v1/transactions/{open}",
    "/v1/producer-groups/shop",
    "/v1/groups/billing/offsets",
)
NAMED = (
    ("GET", "/v1/topics/{name}"),
    ("GET", "/v1/topics/{name}/queues"),
    ("GET", "/v1/topics/{name}/queues/0/offset?at=2020-01-01T00:00:00Z"),
    ("GET", "/v1/topics/{name}/queues/0/messages"),
    ("POST", "/v1/topics/{name}/messages"),
    ("POST", "/v1/topics/{name}/messages/batch"),
    ("POST", "/v1/topics/{name}/messages/raw"),
    ("PUT", "/v1/producer-groups/{name}"),
    ("GET", "/v1/producer-groups/{name}"),
    ("POST", "/v1/producer-groups/{name}/checks/receive"),
    ("POST", "/v1/producer-groups/{name}/checks/answer"),
    ("GET", "/v1/groups/{name}/offsets"),
    ("PUT", "/v1/groups/{name}/offsets"),
)
NAMED_IN_QUERY = (
    ("/v1/transactions", "producer_group"),
    ("/v1/messages?key=k", "topic"),
    ("/v1/topics/{topic}/queues/0/messages?offset=0", "group"),
    ("/v1/schedules", "topic"),
    ("/v1/groups/billing/offsets", "topic"),
    ("/v1/tasks", "group"),
)
BODIES = {
    "messages": MESSAGE,
    "batch": {"entries": [{"message": MESSAGE}]},
    "raw": b"x",
    "answer": {"answers": [{"check_id": CHECK_ID, "decision": "commit"}]},
    "offsets": {"offsets": [{"topic": "{topic}", "queue_id": 0, "offset": 0}]},
}
RESERVED = (
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "rmq_sys_escrowmq_checks",
    "%RETRY%billing",
    "%DLQ%billing",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
)
HOSTILE = (
    ".",
    "..",
    ".hidden",
    "a b",
    "a\x00b",
    "a\nb",
    "ü",
    "a%",
    "a:b",
    "a|b",
    "a\\b",
    "x" * 128,
    "x" * 5_000,
    "'; DROP TABLE topics; --",
)


def named() -> Iterator[Case]:
    for method, path in NAMED:
        body = BODIES.get(path.partition("?")[0].rpartition("/")[2]) if method != "GET" else None
        if method == "PUT" and "producer" in path:
            body = {}
        for name in RESERVED:
            yield Case(
                f"{method} {path} {name}",
                method,
                path.replace("{name}", quote(name, safe="")),
                body,
                code="reserved_topic",
            )
        for name in HOSTILE:
            shown = f"{method} {path} {name[:20]!r}"
            yield Case(
                shown,
                method,
                path.replace("{name}", quote(name, safe="").replace(".", "%2e")),
                body,
            )
        # A slash makes another path of it, however it is written.
        for name in ("%2F..%2F..%2Fetc", "a%2Fb"):
            yield Case(
                f"{method} {path} {name}",
                method,
                path.replace("{name}", name),
                body,
                status=404,
                code="route_not_found",
            )


def named_in_query() -> Iterator[Case]:
    for path, parameter in NAMED_IN_QUERY:
        for name in (*RESERVED, *HOSTILE, ""):
            target = f"{path}{'&' if '?' in path else '?'}{parameter}={quote(name, safe='')}"
            shown = f"GET {path} {parameter} {name[:20]!r}"
            if name in RESERVED:
                yield Case(shown, "GET", target, code="reserved_topic")
            else:
                yield Case(shown, "GET", target, pointer=f"/query/{parameter}")


def nulls() -> Iterator[Case]:
    """`null` is rejected wherever it stands, but inside `json`."""
    for field in (
        "payload", "payload_encoding", "content_type", "key", "tag", "ordering_key", "queue_id",
        "properties", "delay_ms",
        "deliver_at", "delay_level", "require_durability",
    ):  # fmt: skip
        yield send(f"null {field}", {**MESSAGE, field: None}, f"/{field}")
    yield send("null property", {**MESSAGE, "properties": {"a": None}}, "/properties/a")
    for field in ("producer_group", "messages", "transaction_id", "business_key", "check"):
        yield begin(f"null {field}", f"/{field}", **{field: None})
    for field in (
        "first_after_ms",
        "interval_ms",
        "max_answers",
        "unreachable_limit_ms",
        "on_exhausted",
    ):
        yield begin(f"null {field}", f"/check/{field}", check={field: None})
    for field in (
        "queues",
        "message_types",
        "retention_ms",
        "max_message_bytes",
        "dedup_window_ms",
        "max_delay_ms",
        "topic",
    ):
        yield create(f"null {field}", f"/{field}", **{field: None})
    for body in (None, [], "text", 0, True):
        yield Case(f"a body that is {body!r}", "POST", "/v1/topics", json.dumps(body).encode())


def unknown() -> Iterator[Case]:
    """A field or query parameter that the operation does not know."""
    for method, path in JSON_ROUTES:
        yield Case(
            f"unknown field, {method} {path}", method, path, {"nonsense": 1}, pointer="/nonsense"
        )
        yield Case(
            f"unknown parameter, {method} {path}",
            method,
            f"{path}?nonsense=1",
            {},
            pointer="/query/nonsense",
        )
    for path in GET_ROUTES:
        # there `at` is missing as well
        pointer = None if path.endswith("offset") else "/query/nonsense"
        yield Case(f"unknown parameter, GET {path}", "GET", f"{path}?nonsense=1", pointer=pointer)
    yield Case(
        "unknown parameter, raw",
        "POST",
        "/v1/topics/{topic}/messages/raw?a=1",
        b"x",
        pointer="/query/a",
    )
    yield send("unknown field with odd characters", {**MESSAGE, "a/b~c": 1}, "/a~1b~0c")
    yield begin(
        "unknown field of a message",
        "/messages/0/message/nonsense",
        messages=[{"topic": "{topic}", "message": {"nonsense": 1}}],
    )
    yield begin("unknown field of the check", "/check/nonsense", check={"nonsense": 1})
    yield pull("parameter twice", "offset=0&offset=1", "/query/offset")


def texts() -> Iterator[Case]:
    """Key, tag and ordering key: 255 bytes of UTF-8, no control characters; key and tag without
    spaces, a tag without |.
    """
    for field in ("key", "tag", "ordering_key", "content_type"):
        yield send(f"{field} of no characters", {**MESSAGE, field: ""}, f"/{field}")
        yield send(f"{field} of 256 bytes", {**MESSAGE, field: "x" * 256}, f"/{field}")
        yield send(
            f"{field} of 128 characters and 256 bytes", {**MESSAGE, field: "ü" * 128}, f"/{field}"
        )
        for character in "\x00\x01\x02\t\n\x1f\x7f\x85":
            yield send(
                f"{field} with {character!r}", {**MESSAGE, field: f"a{character}b"}, f"/{field}"
            )
        yield send(f"{field} that is a number", {**MESSAGE, field: 1}, f"/{field}")
    for field in ("key", "tag"):
        yield send(f"{field} with a space", {**MESSAGE, field: "a b"}, f"/{field}")
    yield send("tag with |", {**MESSAGE, "tag": "a|b"}, "/tag")
    yield send("no keys", {**MESSAGE, "keys": []}, "/keys")
    yield send("33 keys", {**MESSAGE, "keys": [str(n) for n in range(33)]}, "/keys")
    yield send("keys that are a text", {**MESSAGE, "keys": "a b"}, "/keys")
    yield send("a key and keys", {**MESSAGE, "key": "a", "keys": ["b"]}, "/keys")
    yield send("the same key twice", {**MESSAGE, "keys": ["a", "b", "a"]}, "/keys/2")
    for what, key in (("no characters", ""), ("256 characters", "k" * 256), ("a space", "a b"),
                      ("256 bytes", "ü" * 128), ("a control character", "a\x01")):  # fmt: skip
        yield send(f"keys with one of {what}", {**MESSAGE, "keys": ["a", key]}, "/keys/1")
    yield begin(
        "keys with a space",
        "/messages/0/message/keys/0",
        messages=[{"topic": "{topic}", "message": {**MESSAGE, "keys": ["a b"]}}],
    )
    yield begin("business_key of 256 bytes", "/business_key", business_key="ü" * 128)
    yield begin("business_key with a control character", "/business_key", business_key="a\nb")
    yield begin("business_key of no characters", "/business_key", business_key="")


def properties() -> Iterator[Case]:
    for name in ("", "a b", "ü", "a:b", "x" * 128, "a/b", "a\x01b"):
        pointer = f"/properties/{name.replace('/', '~1')}"
        yield send(f"property named {name[:10]!r}", {**MESSAGE, "properties": {name: "v"}}, pointer)
    for name in (
        "KEYS",
        "TAGS",
        "UNIQ_KEY",
        "TRAN_MSG",
        "__own",
        "__",
        "DELAY",
        "CLUSTER",
        "INSTANCE_ID",
    ):
        yield send(
            f"property that is reserved: {name}",
            {**MESSAGE, "properties": {name: "v"}},
            f"/properties/{name}",
        )
    for character in "\x00\x01\x02\n\x7f":
        yield send(
            f"property with {character!r}",
            {**MESSAGE, "properties": {"a": f"b{character}"}},
            "/properties/a",
        )
    yield send("property that is a number", {**MESSAGE, "properties": {"a": 1}}, "/properties/a")
    yield send("properties that are a list", {**MESSAGE, "properties": []}, "/properties")
    yield send(
        "properties of 16 KiB and a byte",
        {**MESSAGE, "key": "k", "properties": {"a": "x" * 16_383}},
        "/properties",
    )
    yield send(
        "properties of 16 KiB and a byte with keys",
        {**MESSAGE, "keys": ["k", "l"], "properties": {"a": "x" * 16_382}},
        "/properties",
    )
    yield send(
        "properties of 16 KiB and a character",
        {**MESSAGE, "properties": {"a": "x" * 16_382, "b": "ü"}},
        "/properties",
    )


def messages() -> Iterator[Case]:
    yield send("nothing", {}, "/payload")
    yield send("payload and json", {"payload": "x", "json": 1}, "/payload")
    yield send("json as base64", {"json": 1, "payload_encoding": "base64"}, "/payload_encoding")
    yield send(
        "json with another content type", {"json": 1, "content_type": "text/plain"}, "/content_type"
    )
    yield send(
        "encoding that is none", {"payload": "x", "payload_encoding": "hex"}, "/payload_encoding"
    )
    yield send(
        "encoding in capitals", {"payload": "x", "payload_encoding": "UTF8"}, "/payload_encoding"
    )
    for text in ("x", "====", "AAA", "AA==\n", "A-_=", "ü", "AAA=AAA="):
        yield send(
            f"no base64: {text!r}", {"payload": text, "payload_encoding": "base64"}, "/payload"
        )
    yield send("payload that is an object", {"payload": {}}, "/payload")
    yield send("negative queue", {**MESSAGE, "queue_id": -1}, "/queue_id")
    yield send("queue that is text", {**MESSAGE, "queue_id": "0"}, "/queue_id")
    yield send("queue that is no integer", {**MESSAGE, "queue_id": 0.5}, "/queue_id")
    yield send("queue over every limit", {**MESSAGE, "queue_id": 1_024}, "/queue_id")
    yield send(
        "queue that the topic has not",
        {**MESSAGE, "queue_id": 1},
        status=404,
        code="queue_not_found",
    )
    yield send("two delays", {**MESSAGE, "delay_ms": 0, "delay_level": 1}, "/delay_level")
    yield send("negative delay", {**MESSAGE, "delay_ms": -1}, "/delay_ms")
    yield send("delay level 0", {**MESSAGE, "delay_level": 0}, "/delay_level")
    yield send("delay level 19", {**MESSAGE, "delay_level": 19}, "/delay_level")
    for time in (
        "",
        "yesterday",
        "2026-03-02",
        "2026-03-02T10:15:00",
        "2026-13-02T10:15:00Z",
        1_772_446_504,
    ):
        yield send(f"time {time!r}", {**MESSAGE, "deliver_at": time}, "/deliver_at")
    yield send(
        "durability that is none",
        {**MESSAGE, "require_durability": "eternal"},
        "/require_durability",
    )


def batches() -> Iterator[Case]:
    def batch(name: str, body: Any, pointer: str | None = None) -> Case:
        return Case(
            f"batch {name}", "POST", "/v1/topics/{topic}/messages/batch", body, pointer=pointer
        )

    yield batch("of nothing", {}, "/entries")
    yield batch("of no entries", {"entries": []}, "/entries")
    yield batch("entries that are an object", {"entries": {}}, "/entries")
    yield batch("entry without a message", {"entries": [{"id": "a"}]}, "/entries/0/message")
    yield batch(
        "entry without a message, not atomic",
        {"atomic": False, "entries": [{"id": "a"}]},
        "/entries/0/message",
    )
    yield batch(
        "entry with an unknown field", {"entries": [{"message": MESSAGE, "x": 1}]}, "/entries/0/x"
    )
    yield batch(
        "atomic that is text", {"atomic": "yes", "entries": [{"message": MESSAGE}]}, "/atomic"
    )
    yield batch(
        "two entries of one id", {"entries": [{"id": "a", "message": MESSAGE}] * 2}, "/entries/1/id"
    )
    yield batch(
        "id of no characters", {"entries": [{"id": "", "message": MESSAGE}]}, "/entries/0/id"
    )
    yield batch(
        "wrong field in the second",
        {"entries": [{"message": MESSAGE}, {"message": {"key": 1}}]},
        "/entries/1/message/key",
    )
    nothing_stands_in_it = (
        b'{"atomic":false,"entries":[{"message":{"payload":"x"}},{"message":{"json":1e400}}]}'
    )
    yield Case(
        "batch with 1e400",
        "POST",
        "/v1/topics/{topic}/messages/batch",
        nothing_stands_in_it,
        status=400,
        code="malformed_request",
    )


def begins() -> Iterator[Case]:
    yield begin("without a group", "/producer_group", producer_group=...)
    yield begin("without messages", "/messages", messages=...)
    yield begin("with no messages", "/messages", messages=[])
    yield begin("message without a topic", "/messages/0/topic", messages=[{"message": MESSAGE}])
    yield begin("message without a message", "/messages/0/message", messages=[{"topic": "{topic}"}])
    for name in HOSTILE[:-2]:
        yield begin(f"id {name[:10]!r}", "/transaction_id", transaction_id=name)
        yield begin(f"group {name[:10]!r}", producer_group=name)
        yield begin(f"topic {name[:10]!r}", messages=[{"topic": name, "message": MESSAGE}])
    for name in RESERVED:
        yield begin(f"reserved group {name}", producer_group=name, code="reserved_topic")
        yield begin(
            f"reserved topic {name}",
            messages=[{"topic": name, "message": MESSAGE}],
            code="reserved_topic",
        )
        yield Case(
            f"create reserved {name}", "POST", "/v1/topics", {"topic": name}, code="reserved_topic"
        )
        offsets = {"offsets": [{"topic": name, "queue_id": 0, "offset": 0}]}
        yield Case(
            f"offsets of reserved {name}",
            "PUT",
            "/v1/groups/billing/offsets",
            offsets,
            code="reserved_topic",
        )
        yield Case(
            f"get offsets of reserved {name}",
            "GET",
            f"/v1/groups/billing-now/offsets?topic={quote(name)}",
            status=404,
            code="group_not_found",
        )
    yield begin("first check at 9 ms", "/check/first_after_ms", check={"first_after_ms": 9})
    yield begin("interval of 9 ms", "/check/interval_ms", check={"interval_ms": 9})
    yield begin("no answers at all", "/check/max_answers", check={"max_answers": 0})
    yield begin("1,001 answers", "/check/max_answers", check={"max_answers": 1_001})
    yield begin("exhausted with commit", "/check/on_exhausted", check={"on_exhausted": "commit"})
    yield begin("check that is a list", "/check", check=[])
    for name, fields, code, pointer in (
        (
            "delay beyond the limit",
            {"delay_ms": 1 << 53},
            "validation_failed",
            "/messages/0/message/delay_ms",
        ),
        (
            "delayed message in an order",
            {"delay_ms": 5, "ordering_key": "k"},
            "unsupported_combination",
            "/messages/0/message",
        ),
    ):
        messages = [{"topic": "{topic}", "message": MESSAGE | fields}]
        yield begin(name, pointer, code=code, messages=messages)
    for verb, body, pointer in (
        ("commit", {"reason": "x"}, "/reason"),
        ("rollback", {"reason": 1}, "/reason"),
        ("rollback", {"reason": "a\x00b"}, "/reason"),
        ("rollback", {"reason": "x" * 1_025}, "/reason"),
        ("resolve", {}, "/decision"),
        ("resolve", {"decision": "unknown"}, "/decision"),
        ("resolve", {"decision": "COMMIT"}, "/decision"),
        ("resume", {"decision": "commit"}, "/decision"),
    ):
        yield Case(
            f"{verb} {body}"[:60],
            "POST",
            f"/v1/transactions/{{open}}/{verb}",
            body,
            pointer=pointer,
        )


def schedules() -> Iterator[Case]:
    for name, body, pointer in (
        ("nothing", {}, "/deliver_at"),
        ("no time", {"deliver_at": "soon"}, "/deliver_at"),
        ("a time without an offset", {"deliver_at": "2030-01-01T00:00:00"}, "/deliver_at"),
        ("null", {"deliver_at": None}, "/deliver_at"),
        ("a delay", {"deliver_at": "2030-01-01T00:00:00Z", "delay_ms": 5}, "/delay_ms"),
    ):
        yield Case(f"move to {name}", "PATCH", "/v1/schedules/sch_nobody", body, pointer=pointer)
    for method in ("GET", "DELETE"):
        yield Case(
            f"{method} no schedule", method, "/v1/schedules/" + "x" * 500, status=404,
            code="schedule_not_found"
        )  # fmt: skip
    yield Case(
        "page token of another list",
        "GET",
        "/v1/schedules?page_token=dG9waWNzOng",
        status=400,
        code="invalid_page_token",
    )


def topics() -> Iterator[Case]:
    yield Case("create nothing", "POST", "/v1/topics", {}, pointer="/topic")
    for name in HOSTILE[:-1]:
        yield create(f"{name[:10]!r}", "/topic", topic=name)
    for field, below, above in (
        ("queues", 0, 1_025),
        ("retention_ms", 0, 1 << 54),
        ("max_message_bytes", 0, (16 << 20) + 1),
        ("dedup_window_ms", -1, 1 << 54),
        ("max_delay_ms", -1, 1 << 54),
    ):
        yield create(f"{field} too small", f"/{field}", **{field: below})
        yield create(f"{field} too large", f"/{field}", **{field: above})
        yield create(f"{field} as text", f"/{field}", **{field: "4"})
        yield create(f"{field} as a fraction", f"/{field}", **{field: 4.5})
        yield create(f"{field} as a truth value", f"/{field}", **{field: True})
    yield create("of no type", "/message_types", message_types=[])
    yield create("of a type that is none", "/message_types/0", message_types=["weird"])
    yield create("of a type twice", "/message_types", message_types=["fifo", "fifo"])


def raws() -> Iterator[Case]:
    yield raw("key with a space", {"Message-Key": "a%20b"}, "/headers/message-key")
    yield raw("key with a line break", {"Message-Key": "a%0Ab"}, "/headers/message-key")
    yield raw("key that is no UTF-8", {"Message-Key": "%ff"}, "/headers/message-key")
    yield raw("key of 256 bytes", {"Message-Key": "%C3%BC" * 128}, "/headers/message-key")
    yield raw("key of nothing", {"Message-Key": ""}, "/headers/message-key")
    yield raw("tag with |", {"Message-Tag": "a|b"}, "/headers/message-tag")
    yield raw(
        "ordering key with a NUL", {"Message-Ordering-Key": "%00"}, "/headers/message-ordering-key"
    )
    yield raw("queue that is text", {"Message-Queue-Id": "one"}, "/headers/message-queue-id")
    yield raw("negative queue", {"Message-Queue-Id": "-1"}, "/headers/message-queue-id")
    yield raw("negative delay", {"Message-Delay-Ms": "-1"}, "/headers/message-delay-ms")
    yield raw("time that is none", {"Message-Deliver-At": "soon"}, "/headers/message-deliver-at")
    yield raw(
        "durability that is none",
        {"Message-Require-Durability": "no"},
        "/headers/message-require-durability",
    )
    yield raw("header that nobody knows", {"Message-Nonsense": "1"}, "/headers/message-nonsense")
    yield raw(
        "property that is reserved", {"Message-Property-__x": "1"}, "/headers/message-property-__x"
    )
    yield raw("property without a name", {"Message-Property-": "1"}, "/headers/message-property-")
    yield raw(
        "property with an odd name", {"Message-Property-A!b": "1"}, "/headers/message-property-a!b"
    )
    yield raw(
        "property with a line break",
        {"Message-Property-A": "%0d%0a"},
        "/headers/message-property-a",
    )
    yield raw("content type that is too long", {"Content-Type": "x" * 256}, "/headers/content-type")


def queries() -> Iterator[Case]:
    for name, low, high in (
        ("max_messages", 0, 1_001),
        ("max_bytes", 0, (16 << 20) + 1),
        ("wait_ms", -1, 30_001),
        ("offset", -1, None),
    ):
        for value in (
            low,
            high,
            "",
            "x",
            "1.5",
            "+1",
            "%201",
            "1_0",
            "0x1",
            "%D9%A5",
            "true",
            "null",
        ):
            if value is not None:
                yield pull(f"{name}={value}", f"{name}={value}", f"/query/{name}")
    yield pull("payload that is no form", "payload=hex", "/query/payload")
    yield pull("payload in capitals", "payload=UTF8", "/query/payload")
    yield pull("jump to nowhere", "out_of_range=middle", "/query/out_of_range")
    yield pull("tag that is too long", f"tag={'x' * 4_097}", "/query/tag")
    yield pull("offset and time", "offset=0&from=2026-03-01T00:00:00.000Z", "/query/from")
    for time in ("", "yesterday", "2026-03-01", "2026-03-01T00:00:00", "2026-03-01T25:00:00Z", "0"):
        yield pull(f"from={time}", f"from={time}", "/query/from")
        path = f"/v1/topics/{{topic}}/queues/0/offset?at={time}"
        yield Case(f"offset at={time}", "GET", path, pointer="/query/at")
    yield Case(
        "offset without a time", "GET", "/v1/topics/{topic}/queues/0/offset", pointer="/query/at"
    )
    yield pull("offset behind the end", "offset=1", status=400, code="offset_beyond_end")
    yield pull(
        "offset that no number of ours holds",
        f"offset={'9' * 30}",
        status=400,
        code="offset_beyond_end",
    )
    yield pull("offset of 5,000 digits", f"offset={'9' * 5_000}", "/query/offset")
    for queue in ("-1", "x", "1.0", "+1", "0x1", "1e3", "1_0", "%201", "", "%D9%A5", "9" * 30):
        status, code = (404, "route_not_found") if queue == "" else (422, "validation_failed")
        for rest in ("messages", "offset?at=2020-01-01T00:00:00Z"):
            yield Case(
                f"queue {queue} {rest}"[:40],
                "GET",
                f"/v1/topics/{{topic}}/queues/{queue}/{rest}",
                status=status,
                code=code,
            )
    for queue in (1, 1_024, 9_999_999_999):
        yield Case(
            f"queue {queue}",
            "GET",
            f"/v1/topics/{{topic}}/queues/{queue}/messages",
            status=404,
            code="queue_not_found",
        )
    for path in ("/v1/topics", "/v1/transactions"):
        for size in ("0", "1001", "-1", "x", ""):
            yield Case(
                f"{path} page_size={size}",
                "GET",
                f"{path}?page_size={size}",
                pointer="/query/page_size",
            )
        yield Case(
            f"{path} with a long token",
            "GET",
            f"{path}?page_token={'x' * 1_025}",
            pointer="/query/page_token",
        )
    for state in ("", "open", "prepared,", "PREPARED", "prepared;held"):
        yield Case(
            f"state={state}", "GET", f"/v1/transactions?state={state}", pointer="/query/state"
        )
    yield Case(
        "older than text",
        "GET",
        "/v1/transactions?older_than_ms=old",
        pointer="/query/older_than_ms",
    )
    yield Case(
        "older than the future",
        "GET",
        "/v1/transactions?older_than_ms=-1",
        pointer="/query/older_than_ms",
    )
    yield Case(
        "wait too long", "GET", "/v1/transactions/{open}?wait_ms=30001", pointer="/query/wait_ms"
    )
    for time in ("yesterday", "2026-03-02T10:15:04", "9999-03-02T10:15:04.000Z", ""):
        yield Case(
            f"as_of={time}",
            "GET",
            f"/v1/transactions/{{open}}?as_of={time}",
            pointer="/query/as_of",
        )


def checks() -> Iterator[Case]:
    def receive(field: str, value: Any) -> Case:
        body = {field: value}
        return Case(
            f"receive {body}",
            "POST",
            "/v1/producer-groups/shop/checks/receive",
            body,
            pointer=f"/{field}",
        )

    def answer(name: str, answers: Any, pointer: str) -> Case:
        return Case(
            f"answer {name}",
            "POST",
            "/v1/producer-groups/shop/checks/answer",
            {"answers": answers},
            pointer=pointer,
        )

    for field, low, high in (
        ("max_checks", 0, 1_001),
        ("wait_ms", -1, 30_001),
        ("lease_ms", 99, 43_200_001),
    ):
        for value in (low, high, "1", None, 1.5):
            yield receive(field, value)
    good = {"check_id": CHECK_ID, "decision": "commit"}
    yield answer("nothing", [], "/answers")
    yield answer("1,001 checks", [good] * 1_001, "/answers")
    yield answer("without an id", [{"decision": "commit"}], "/answers/0/check_id")
    yield answer("without a decision", [{"check_id": CHECK_ID}], "/answers/0/decision")
    for word in ("", "COMMIT", "comit", "held", None, 1):
        yield answer(
            f"with {word!r}",
            [good, {"check_id": CHECK_ID, "decision": word}],
            "/answers/1/decision",
        )
    yield answer("with an id of no characters", [{**good, "check_id": ""}], "/answers/0/check_id")
    yield answer("with evidence that is a list", [{**good, "evidence": []}], "/answers/0/evidence")
    yield answer(
        "with evidence that holds a number",
        [{**good, "evidence": {"a": 1}}],
        "/answers/0/evidence/a",
    )
    yield answer(
        "with too much evidence", [{**good, "evidence": {"a": "x" * 5_000}}], "/answers/0/evidence"
    )
    yield answer(
        "to be asked again too late",
        [{**good, "recheck_after_ms": 86_400_001}],
        "/answers/0/recheck_after_ms",
    )
    yield answer(
        "to be asked again in the past",
        [{**good, "recheck_after_ms": -1}],
        "/answers/0/recheck_after_ms",
    )
    group = "/v1/producer-groups/shop"
    yield Case(
        "check mode that is none", "PUT", group, {"check_mode": "smoke"}, pointer="/check_mode"
    )
    for field in ("check_url", "timeout_ms", "concurrency"):
        value = "https://x.example" if field == "check_url" else 1
        yield Case(
            f"poll with {field}",
            "PUT",
            group,
            {"check_mode": "poll", field: value},
            pointer=f"/{field}",
        )


def offsets() -> Iterator[Case]:
    def commit(name: str, body: Any, pointer: str | None = None, **expected: Any) -> Case:
        return Case(
            f"offsets {name}",
            "PUT",
            "/v1/groups/billing/offsets",
            body,
            pointer=pointer,
            **expected,
        )

    one = {"topic": "{topic}", "queue_id": 0, "offset": 0}
    yield commit("of nothing", {}, "/offsets")
    yield commit("none", {"offsets": []}, "/offsets")
    yield commit("1,001", {"offsets": [one] * 1_001}, "/offsets")
    yield commit("negative", {"offsets": [{**one, "offset": -1}]}, "/offsets/0/offset")
    yield commit("text", {"offsets": [{**one, "offset": "0"}]}, "/offsets/0/offset")
    yield commit("negative queue", {"offsets": [{**one, "queue_id": -1}]}, "/offsets/0/queue_id")
    for field in one:
        rest = {name: value for name, value in one.items() if name != field}
        yield commit(f"without {field}", {"offsets": [rest]}, f"/offsets/0/{field}")
    yield commit(
        "behind the end", {"offsets": [{**one, "offset": 1}]}, status=400, code="offset_beyond_end"
    )
    yield commit(
        "of a queue that is not there",
        {"offsets": [{**one, "queue_id": 1}]},
        status=404,
        code="queue_not_found",
    )
    yield Case(
        "offsets of a group that nobody made",
        "GET",
        "/v1/groups/nobody/offsets",
        status=404,
        code="group_not_found",
    )


def types() -> Iterator[Case]:
    for content_type in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "json",
        ",",
        "application/jsonp",
    ):
        for method, path in JSON_ROUTES:
            yield Case(
                f"{content_type}, {method} {path}",
                method,
                path,
                b"{}",
                {"Content-Type": content_type},
                415,
                "unsupported_media_type",
            )
    for encoding in ("deflate", "br", "zstd", "gzip, gzip", "x"):
        for method, path in (
            *JSON_ROUTES[:4],
            ("POST", "/v1/topics/{topic}/messages/raw"),
            ("GET", "/v1/topics"),
        ):
            yield Case(
                f"{encoding}, {method} {path}",
                method,
                path,
                b"{}",
                {"Content-Encoding": encoding},
                415,
                "unsupported_media_type",
            )


def routes() -> Iterator[Case]:
    for path in (
        "/v1",
        "/v1/",
        "/v1/topics/",
        "//v1/topics",
        "/v2/topics",
        "/v1/topics/{topic}/",
        "/V1/topics",
        "/v1/schedules/",
        "/v1/transactions/{open}/past",
        "/v1/groups/billing/past",
        "/v1/%74opics/",
        "/favicon.ico",
        "/docs/assets/nothing.js",
        "/docs/assets/../../../etc/passwd",
        "/docs/assets/%2e%2e/%2e%2e/setup.py",
        "/ui/nothing.js",
        "/ui/pages/",
        "/ui/../../../etc/passwd",
        "/ui/%2e%2e/__init__.py",
        "/problems/nothing",
    ):
        yield Case(f"GET {path}", "GET", path, status=404, code="route_not_found")
    for method, path in (
        ("DELETE", "/v1/topics"),
        ("POST", "/v1/topics/{topic}"),
        ("PUT", "/v1/transactions"),
        ("GET", "/v1/transactions/{open}/commit"),
        ("GET", "/v1/groups/billing/receive"),
        ("DELETE", "/v1/groups/billing/offsets"),
        ("POST", "/livez"),
        ("OPTIONS", "/v1/topics"),
        ("POST", "/docs"),
        ("POST", "/ui/main.js"),
        ("TRACE", "/v1/topics"),
    ):
        yield Case(f"{method} {path}", method, path, status=405, code="method_not_allowed")


def nonsense() -> Iterator[Case]:
    yield from malformed("no JSON", b"nonsense")
    yield from malformed("JSON that is cut short", b'{"a":')
    yield from malformed("two values", b"{} {}")
    yield from malformed("white space alone", b" \n")
    yield from malformed("NaN", b'{"nonsense":NaN}')
    yield from malformed("Infinity", b'{"nonsense":[-Infinity]}')
    yield from malformed("a number that no double holds", b'{"nonsense":1e400}')
    yield from malformed("an integer that no double holds", b'{"nonsense":' + b"9" * 400 + b"}")
    yield from malformed("an integer of 5,000 digits", b'{"nonsense":-' + b"9" * 5_000 + b"}")
    yield from malformed("a lone surrogate", b'{"nonsense":"\\ud800"}')
    yield from malformed("a surrogate pair the wrong way round", b'{"nonsense":"\\udc00\\ud800"}')
    yield from malformed("no UTF-8", b'{"nonsense":"\xff"}')
    yield from malformed("UTF-16", '{"nonsense":1}'.encode("utf-16"))
    yield from malformed("a byte order mark", b"\xef\xbb\xbf{}")
    yield from malformed("10,000 lists deep", b'{"nonsense":' + b"[" * DEEP + b"]" * DEEP + b"}")
    yield from malformed("lists deeper than a body has values", b"[" * 200_000 + b"]" * 200_000)
    yield from malformed("10,000 objects deep", b'{"a":' * DEEP + b"1" + b"}" * DEEP)
    yield from malformed("129 levels", b'{"nonsense":' + b"[" * 128 + b"]" * 128 + b"}")
    yield from malformed("a leading zero", b'{"nonsense":01}')
    yield from malformed("a control character in a text", b'{"nonsense":"a\nb"}')
    yield from malformed("single quotes", b"{'a':1}")
    yield from malformed("a comment", b"{/* */}")
    for name, value in (
        ("NaN", b"NaN"), ("1e400", b"1e400"), ("-1e400", b"-1e400"), ("400 digits", b"9" * 400),
        ("surrogate", b'"\\ud800"'),
        ("no UTF-8", b'"\xff"'),
        ("deep", b"[" * DEEP + b"]" * DEEP), ("128 levels", b"[" * 128 + b"]" * 128),
        ("cut short", b"["),
    ):  # fmt: skip
        path = "/v1/topics/{topic}/messages"
        yield Case(
            f"json: {name}",
            "POST",
            path,
            b'{"json":' + value + b"}",
            status=400,
            code="malformed_request",
        )
        batch = b'{"entries":[{"message":{"json":' + value + b"}}]}"
        yield Case(
            f"json in a batch: {name}",
            "POST",
            f"{path}/batch",
            batch,
            status=400,
            code="malformed_request",
        )
        begun = (
            b'{"producer_group":"shop","messages":[{"topic":"{topic}","message":{"json":'
            + value
            + b"}}]}"
        )
        yield Case(
            f"json in a begin: {name}",
            "POST",
            "/v1/transactions",
            begun,
            status=400,
            code="malformed_request",
        )


CASES = [
    *named(), *named_in_query(), *nulls(), *unknown(), *texts(), *properties(), *messages(), *batches(), *begins(),
    *topics(), *raws(), *queries(),
    *schedules(), *checks(), *offsets(), *types(), *routes(), *nonsense(),
]  # fmt: skip


@pytest.fixture(scope="session")
def places(api) -> dict[str, str]:
    """What exists while the table is gone through."""
    ok(api.post("/v1/topics", json={"topic": "table", "queues": 1}), 201)
    begun = {
        "producer_group": "shop",
        "messages": [{"topic": "table", "message": MESSAGE}],
        "check": {"first_after_ms": 3_600_000},
    }
    transaction_id = ok(api.post("/v1/transactions", json=begun), 201)["transaction_id"]
    ok(
        api.put(
            "/v1/groups/billing/offsets",
            json={"offsets": [{"topic": "table", "queue_id": 0, "offset": 0}]},
        )
    )
    return {"{topic}": "table", "{open}": transaction_id}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_it_is_refused(api, places, case):
    content = (
        case.body
        if isinstance(case.body, bytes)
        else None
        if case.body is None
        else json.dumps(case.body).encode()
    )
    path = case.path
    for place, value in places.items():
        path = path.replace(place, value)
        content = content.replace(place.encode(), value.encode()) if content else content
    headers = {name: value.encode() for name, value in case.headers.items()}
    if content is not None and not case.headers and not isinstance(case.body, bytes):
        headers = {"Content-Type": b"application/json"}

    answer = api.request(case.method, path, content=content, headers=headers)

    assert_problem(
        answer, case.status, case.code, *([case.pointer] if case.pointer is not None else [])
    )


def test_nothing_of_all_that_has_changed_anything(api, places):
    transaction = ok(api.get(f"/v1/transactions/{places['{open}']}"))
    assert (transaction["state"], transaction["revision"]) == ("prepared", 1)
    assert ok(api.get("/v1/topics/table/queues"))["items"] == [
        {"queue_id": 0, "min_offset": 0, "max_offset": 0}
    ]
    assert_problem(api.get("/v1/topics/never-made"), 404, "topic_not_found")


@pytest.mark.parametrize(
    "message",
    [
        {"payload": "x", "key": "ü" * 127, "tag": "x" * 255, "ordering_key": "x" * 255},
        {"payload": "x", "properties": {"a": "x" * 16_383}},
        {"payload": "x", "key": "k" * 83, "properties": {"a": "x" * 16_300}},
        {"payload": "x", "properties": {"x" * 127: "v", "not__reserved": "v"}},
        {"json": json.loads("[" * 127 + "]" * 127)},
        {"payload": "\x00\x01\x02"},
        {"payload": "x", "content_type": "x" * 255},
        {"payload": "", "properties": {}},
    ],
    ids=lambda message: str(message)[:60],
)
def test_what_lies_on_a_limit_is_taken(api, topic, message):
    receipt = ok(api.post(f"/v1/topics/{topic}/messages", json=message), 201)

    (found,) = ok(api.get(f"/v1/topics/{topic}/queues/0/messages"))["messages"]
    assert found["message_id"] == receipt["message_id"]
    assert {name: found[name] for name in message if name != "json"} == {
        name: message[name] for name in message if name != "json"
    }


def test_a_field_error_never_shows_a_whole_body_again(api, topic):
    answer = api.post(f"/v1/topics/{topic}/messages", json={"x" * 100_000: 1})

    assert_problem(answer, 422, "validation_failed")
    assert len(answer.content) < 5_000


def test_an_encoding_of_no_body_changes_nothing(api):
    assert_problem(
        api.delete("/v1/schedules/sch_none", headers={"Content-Encoding": "gzip"}),
        404,
        "schedule_not_found",
    )


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (
            "/v1/topics/{topic}/messages",
            {"payload": "x", "require_durability": "sure"},
            "buffered, memory, replicated, synced",
        ),
        (
            "/v1/topics/{topic}/messages/batch",
            {"entries": [{"id": "a", "message": {"payload_encoding": "x"}}]},
            "base64, utf8",
        ),
        (
            "/v1/producer-groups/shop/checks/answer",
            {"answers": [{"check_id": "c", "decision": "yes"}]},
            "commit, rollback, unknown",
        ),
        (
            "/v1/groups/billing/offsets/reset",
            {"topic": "t", "to": "begin"},
            "earliest, latest, offset, time",
        ),
    ],
)
def test_a_word_that_is_none_of_a_fields_is_answered_with_those_that_are(
    api, topic, path, body, words
):
    problem = assert_problem(
        api.post(path.replace("{topic}", topic), json=body), 422, "validation_failed"
    )

    assert problem["errors"][0]["detail"].endswith(f": it is one of {words}")
