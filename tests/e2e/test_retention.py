"""Segments expire under a running service: what is undecided, held or scheduled in them is still
there, and comes once.
"""

from datetime import UTC, datetime

import httpx

from tests.support.http import assert_problem, ok, request, speak, until
from tests.support.moved_clock import MovedClockServer
from tests.support.server import Server

EVERY_HOUR = ";".join(map(str, range(24)))
ENVIRONMENT = {
    "ESCROWMQ_LOCAL__SEGMENT_BYTES": str(64 << 10),
    "ESCROWMQ_LOCAL__PREPARE_AHEAD_BYTES": str(32 << 10),
    "ESCROWMQ_LOCAL__SNAPSHOT_INTERVAL_MS": "100",
    "ESCROWMQ_LOCAL__QUEUE_FLUSH_INTERVAL_MS": "50",
    "ESCROWMQ_LOCAL__RETENTION_MS": "300",
    "ESCROWMQ_LOCAL__DELETE_HOURS": EVERY_HOUR,
}
POLICY = {"first_after_ms": 50, "interval_ms": 50, "max_answers": 1}


def begin(api: httpx.Client, name: str, **policy: object) -> None:
    message = {"payload": name, "key": name}
    body = {
        "transaction_id": name,
        "producer_group": "shop",
        "messages": [{"topic": "orders", "message": message}],
        **policy,
    }
    ok(api.post("/v1/transactions", json=body), 201)


def hold(api: httpx.Client, name: str) -> None:
    begin(api, name, check=POLICY)
    checks = until(
        lambda: ok(api.post("/v1/producer-groups/shop/checks/receive", json={"max_checks": 9}))[
            "checks"
        ],
        "a check",
    )
    answer = {"check_id": checks[0]["check_id"], "decision": "unknown"}
    ok(api.post("/v1/producer-groups/shop/checks/answer", json={"answers": [answer]}))
    until(lambda: ok(api.get(f"/v1/transactions/{name}"))["state"] == "held", "it is held")


def bounds(api: httpx.Client, topic: str = "filling") -> tuple[int, int]:
    (queue,) = ok(api.get(f"/v1/topics/{topic}/queues"))["items"]
    return int(queue["min_offset"]), int(queue["max_offset"])


def expire(api: httpx.Client) -> None:
    """Everything that is there now."""
    for _ in range(2):
        for _ in range(10):
            ok(api.post("/v1/topics/filling/messages/raw", content=b"x" * 10_000), 201)
        end = bounds(api)[1]

    def is_gone() -> bool:
        ok(api.post("/v1/topics/filling/messages/raw", content=b"x" * 10_000), 201)
        return bounds(api)[0] >= end

    until(is_gone, "the segments are dropped", seconds=30)


def bodies(api: httpx.Client) -> list[str]:
    offset = bounds(api, "orders")[0]
    page = ok(api.get(f"/v1/topics/orders/queues/0/messages?offset={offset}&max_messages=100"))
    return [message["payload"] for message in page["messages"]]


def verdicts(api) -> dict[str, str]:
    names = "undecided", "held"
    return {name: ok(api.get(f"/v1/audit/transactions/{name}"))["verdict"] for name in names}


def test_what_is_undecided_held_or_scheduled_outlives_its_segment_and_a_kill_and_comes_once(
    tmp_path,
):
    with Server(tmp_path / "data", dev=False, environment=ENVIRONMENT) as server:
        with server.client() as api:
            for topic in "orders", "filling":
                ok(api.post("/v1/topics", json={"topic": topic, "queues": 1}), 201)
            # not asked about meanwhile, however slow the machine
            begin(api, "undecided", check={"first_after_ms": 600_000})
            begin(api, "to-roll-back")
            hold(api, "held")
            delayed = {"payload": "scheduled", "delay_ms": 3_600_000}
            due = ok(api.post("/v1/topics/orders/messages", json=delayed), 201)
            gone = ok(api.post("/v1/topics/orders/messages", json={"payload": "gone"}), 201)
            before = {
                name: ok(api.get(f"/v1/transactions/{name}")) for name in ("undecided", "held")
            }

            expire(api)

            for what in "", "/payload", "/trace":
                assert_problem(
                    api.get(f"/v1/messages/{gone['message_id']}{what}"), 410, "message_expired"
                )
            undecided = before["undecided"]["messages"][0]["message_id"]
            for never_seen in undecided, gone["message_id"][:-1] + "~", "order-8812":
                assert_problem(
                    api.get(f"/v1/messages/{never_seen}/payload"), 404, "message_not_found"
                )
            assert api.get(f"/v1/messages/{due['message_id']}/payload").text == "scheduled"
            problem = assert_problem(
                api.get("/v1/topics/filling/queues/0/messages?offset=0"), 410, "offset_expired"
            )
            assert problem["context"]["min_offset"] != "0"
        server.kill()
        server.start()
        with server.client() as api:
            assert {name: ok(api.get(f"/v1/transactions/{name}")) for name in before} == before
            schedule = ok(api.get(f"/v1/schedules/{due['schedule_id']}"))
            assert (schedule["state"], schedule["deliver_at"]) == ("scheduled", due["deliver_at"])

            assert verdicts(api) == {"undecided": "undecided", "held": "undecided_held"}

            ok(api.post("/v1/transactions/undecided/commit"))
            ok(
                api.post(
                    "/v1/transactions/held/resolve", json={"decision": "commit", "reason": "looked"}
                )
            )
            ok(api.post("/v1/transactions/to-roll-back/rollback"))

            assert verdicts(api) == {"undecided": "committed_once", "held": "resolved_late"}
            assert ok(api.post("/v1/transactions/undecided/commit"))["replayed"]
            assert_problem(
                api.post("/v1/transactions/undecided/rollback"), 409, "transaction_already_resolved"
            )
            assert bodies(api) == ["undecided", "held"]
            told = [
                event["event"]
                for event in ok(api.get("/v1/transactions/undecided/history"))["items"]
            ]
            assert told == ["half_stored", "put_back", "committed"]
            ok(
                api.patch(
                    f"/v1/schedules/{due['schedule_id']}",
                    json={"deliver_at": datetime.now(UTC).isoformat()},
                )
            )
            until(lambda: bodies(api)[2:] == ["scheduled"], "it is delivered")
            disk = ok(api.get("/v1/admin/disk"))
            assert disk["writable"]
            assert 0 < disk["used_ratio"] <= 1


def test_a_damaged_half_message_is_set_aside_by_retention_which_goes_on(tmp_path):
    with Server(tmp_path / "data", dev=False, environment=ENVIRONMENT) as server:
        with server.client() as api:
            for topic in "orders", "filling":
                ok(api.post("/v1/topics", json={"topic": topic, "queues": 1}), 201)
            begin(api, "its-half-is-damaged")
            begin(api, "whole")
        assert server.terminate() == 0
        segment = min((tmp_path / "data" / "store" / "commitlog").iterdir())
        segment.write_bytes(
            segment.read_bytes().replace(b"its-half-is-damaged", b"its-HALF-is-damaged", 1)
        )
        server.start()
        with server.client() as api:
            expire(api)
            expire(api)

            retention = next(
                one for one in ok(api.get("/v1/admin/loops"))["items"] if one["loop"] == "retention"
            )
            assert [item["id"] for item in retention["set_aside_items"]] == ["its-half-is-damaged"]
            assert "last_error" not in retention
            ok(api.post("/v1/transactions/its-half-is-damaged/rollback"))
            ok(api.post("/v1/transactions/whole/commit"))
            assert bodies(api) == ["whole"]


def test_the_longest_retention_of_a_topic_keeps_the_messages_of_all(tmp_path):
    hour_ms = 3_600_000
    with (
        Server(tmp_path / "data", dev=False, environment=ENVIRONMENT) as server,
        server.client() as api,
    ):
        filling = ok(api.post("/v1/topics", json={"topic": "filling", "queues": 1}), 201)
        assert filling["retention_ms"] == int(ENVIRONMENT["ESCROWMQ_LOCAL__RETENTION_MS"])
        assert ok(api.post("/v1/topics", json={"topic": "filling", "queues": 1})) == filling
        expire(api)
        ok(
            api.post("/v1/topics", json={"topic": "kept", "queues": 1, "retention_ms": hour_ms}),
            201,
        )
        made = runs(api)
        for _ in range(30):
            ok(api.post("/v1/topics/filling/messages/raw", content=b"x" * 10_000), 201)
        until(lambda: runs(api) > made, "the run that was under way is over")
        before = bounds(api)

        until(lambda: runs(api) > made + 4_000, "retention has run several times")

        assert bounds(api) == before


def runs(api: httpx.Client) -> float:
    """When retention last ran, in wall milliseconds."""
    retention = next(
        one for one in ok(api.get("/v1/admin/loops"))["items"] if one["loop"] == "retention"
    )
    return datetime.fromisoformat(retention["last_run_at"]).timestamp() * 1_000


def test_an_operator_drops_what_has_expired_at_once_and_sees_before_what_would_go(tmp_path):
    never = {"ESCROWMQ_LOCAL__DELETE_HOURS": str((datetime.now(UTC).hour + 12) % 24),
    "ESCROWMQ_LOCAL__CLEAN_ABOVE": "0.999",
             "ESCROWMQ_LOCAL__FORCE_ABOVE": "0.999",
             "ESCROWMQ_LOCAL__REFUSE_ABOVE": "0.999"}  # fmt: skip
    with (
        Server(tmp_path / "data", environment=ENVIRONMENT | never) as server,
        server.client() as api,
    ):
        for topic in "filling", "orders":
            ok(api.post("/v1/topics", json={"topic": topic, "queues": 1}), 201)
        begin(api, "undecided")
        for _ in range(20):
            ok(api.post("/v1/topics/filling/messages/raw", content=b"x" * 10_000), 201)

        def preview() -> dict:
            return ok(api.post("/v1/admin/retention/run", json={"dry_run": True}))

        expected = until(
            lambda: found if (found := preview())["total"] >= 2 else None,
            "some have expired",
            seconds=30,
        )
        assert bounds(api)[0] == 0
        assert expected["segments"][0] == f"{0:020}"
        assert expected["bytes"] == expected["total"] * (64 << 10)

        run = request("POST", "/v1/admin/retention/run", "Content-Length: 0")
        again = request("POST", "/v1/admin/retention/run", "Content-Length: 0", close=True)
        begun, joined = speak(server, run + again)  # in one piece, so that the first one runs
        path = begun.headers["location"]
        assert (joined.status, joined.headers["location"]) == (202, path)
        task = until(
            lambda: found if (found := ok(api.get(path)))["state"] != "running" else None,
            "it ends",
            seconds=30,
        )

        assert begun.status == 202
        assert (task["kind"], task["state"], "findings" in task) == ("run_retention", "done", False)
        assert task["done"] >= expected["bytes"]
        assert bounds(api)[0] > 0
        assert ok(api.get("/v1/admin/disk"))["segments_dropped"] >= expected["total"]
        ok(api.post("/v1/transactions/undecided/commit"))
        assert bodies(api) == ["undecided"]


def test_a_clock_that_jumps_days_ahead_expires_nothing_and_the_loop_says_so(tmp_path):
    days = {**ENVIRONMENT, "ESCROWMQ_LOCAL__RETENTION_MS": str(86_400_000)}
    with MovedClockServer(tmp_path / "data", environment=days) as server, server.client() as api:
        ok(api.post("/v1/topics", json={"topic": "filling", "queues": 1}), 201)
        for _ in range(20):
            ok(api.post("/v1/topics/filling/messages/raw", content=b"x" * 10_000), 201)
        until(
            lambda: ok(api.get("/v1/admin/store"))["replay_bytes"] == 0, "segments may be dropped"
        )

        server.move(5 * 86_400_000)

        (loop,) = until(
            lambda: [
                loop
                for loop in ok(api.get("/v1/admin/loops"))["items"]
                if loop["loop"] == "retention" and "waits_for" in loop
            ],
            "the jump is seen",
        )
        assert "jumped 432000 s ahead" in loop["waits_for"]
        listed = ok(api.post("/v1/admin/retention/run", json={"dry_run": True}))
        assert (listed["segments"], bounds(api)) == ([], (0, 20))
