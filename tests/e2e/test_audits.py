"""Audits over HTTP.

The reports are made by a program that stands in for Spark; one test at the end asks Spark itself.
"""

import json
import os
import signal
import sys
from functools import partial

import pytest

from app.audit import handlers
from audit.checks.kinds import CHECKS
from tests.audit.test_outcomes import BROKERS, unpacked
from tests.support import broker_log, plain_audit, report_program
from tests.support.http import assert_problem, ok
from tests.support.http import until as until_in
from tests.support.server import Server

until = partial(until_in, seconds=report_program.PATIENCE_SECONDS)
PROGRAM = {"ESCROWMQ_AUDIT__PROGRAM": json.dumps([sys.executable, report_program.__file__])}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("audits") / "data", environment=PROGRAM) as running:
        yield running


@pytest.fixture(scope="module")
def api(server):
    with server.client() as client:
        yield client


def report_of(api, **asked) -> dict:
    """A report that is done, or has failed."""
    answer = api.post("/v1/audit/reports", json=asked)
    made = ok(answer, 202)
    assert answer.headers["location"] == f"/v1/audit/reports/{made['report_id']}"
    assert made["state"] in ("queued", "running")
    return until(
        lambda: (
            (now := ok(api.get(answer.headers["location"])))["state"] in ("done", "failed") and now
        ),
        "it has ended",
    )


def test_a_report_is_asked_for_made_and_looked_at(api):
    asked = {
        "kind": "transaction_outcomes",
        "from": "2026-03-01T00:00:00.000Z",
        "to": "2026-03-02T00:00:00.000Z",
    }

    report = report_of(api, producer_group="shop", **asked)

    assert (report["state"], report["exit_status"], report["balanced"]) == ("done", 1, True)
    assert {**report, **asked, "producer_group": "shop"} == report
    assert report["verdicts"] == {"committed_once": 1, "final_missing": 2}
    assert report["run"]["report_id"] == report["report_id"]
    (listed,) = [
        one
        for one in ok(api.get("/v1/audit/reports"))["items"]
        if one["report_id"] == report["report_id"]
    ]
    assert "verdicts" not in listed
    assert {name: report[name] for name in listed} == listed


def test_findings_come_in_pages_and_by_verdict_or_flag(api):
    path = f"/v1/audit/reports/{report_of(api)['report_id']}/findings"

    first = ok(api.get(path, params={"page_size": 2}))
    rest = ok(api.get(path, params={"page_size": 2, "page_token": first["next_page_token"]}))

    assert [*first["items"], *rest["items"]] == report_program.FINDINGS
    assert "next_page_token" not in rest
    asked = ("final_missing", "damaged", "altered", "queue_gap")
    by = {name: len(ok(api.get(path, params={"verdict": name}))["items"]) for name in asked}
    assert by == {"final_missing": 2, "damaged": 1, "altered": 1, "queue_gap": 1}
    assert ok(api.get(path, params={"verdict": "undecided"}))["items"] == []
    assert_problem(api.get(path, params={"page_token": "x"}), 400, "invalid_page_token")


def test_held_transactions_are_listed_by_their_verdict_and_are_no_findings(api):
    path = f"/v1/audit/reports/{report_of(api)['report_id']}/findings"
    asked = {"verdict": "undecided_held", "page_size": 2}

    first = ok(api.get(path, params=asked))
    rest = ok(api.get(path, params={**asked, "page_token": first["next_page_token"]}))

    assert [*first["items"], *rest["items"]] == report_program.HELD
    assert "next_page_token" not in rest
    assert ok(api.get(path))["items"] == report_program.FINDINGS


def test_a_verdict_that_no_finding_can_have_is_refused_and_not_said_to_be_absent(api):
    path = f"/v1/audit/reports/{report_of(api)['report_id']}/findings"
    problem = assert_problem(
        api.get(path, params={"verdict": "finalmissing"}), 422, "validation_failed"
    )
    (error,) = problem["errors"]
    assert error["pointer"] == "/query/verdict"
    assert "final_missing" in error["detail"]


def test_a_report_asks_all_checks_unless_it_is_told_which(api):
    everything, some, none = (
        report_of(api),
        report_of(api, checks=["what_if", "queues", "queues"]),
        report_of(api, checks=[]),
    )

    assert (
        everything["checks_asked"]
        == list(everything["checks"])
        == list(CHECKS)
        == list(handlers.CHECKS)
    )
    assert some["checks_asked"] == list(some["checks"]) == ["what_if", "queues"]
    assert none["checks_asked"] == []
    assert "checks" not in none
    (gap,) = [one for one in some["findings"]["items"] if one.get("check") == "queues"]
    assert (gap["verdict"], gap["log_offset"], gap["evidence"]["missing"]) == ("queue_gap", 700, 2)


def test_a_report_is_downloaded_as_what_it_has(api):
    report = report_of(api)
    path = f"/v1/audit/reports/{report['report_id']}/download"

    for form in ("json", "csv", "html", "parquet"):
        answer = api.get(path, params={"format": form})
        assert answer.status_code == 200
        assert f'{report["report_id"]}.{form}"' in answer.headers["content-disposition"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert api.get(path).json()["verdicts"] == report["verdicts"]
    lines = api.get(path, params={"format": "csv"}).text.splitlines()
    assert lines[1] == "final_missing,txn_1,shop,wrong_half,0,,,half@0,,"
    assert lines[2] == "damaged,,,,600,8,its checksum is wrong,,,"
    assert lines[3].startswith("final_missing,'=cmd()"), "no spreadsheet takes it for a formula"
    assert (
        lines[4]
        == 'queue_gap,,,,700,,,,queues,"{""topic"":""orders"",""queue_id"":0,""missing"":2}"'
    )
    assert api.get(path, params={"format": "html"}).text == "<html>plots</html>"
    assert api.get(path, params={"format": "parquet"}).content == b"PAR1PAR1"
    without = f"/v1/audit/reports/{report_of(api, producer_group='shop')['report_id']}/download"
    missing = assert_problem(
        api.get(without, params={"format": "parquet"}), 404, "report_not_found"
    )
    assert missing["context"] == {"state": "done"}
    assert_problem(
        api.get(path, params={"format": "pdf"}), 422, "validation_failed", "/query/format"
    )


def test_one_that_failed_says_why_and_has_nothing_to_download(api):
    report = report_of(api, producer_group="fails")

    assert (report["state"], report["reason"]) == ("failed", "the log is not there")
    for part in ("findings", "download"):
        problem = assert_problem(
            api.get(f"/v1/audit/reports/{report['report_id']}/{part}"), 404, "report_not_found"
        )
        assert problem["context"] == {"state": "failed"}


def test_a_dropped_report_is_410_and_one_that_never_was_404(api):
    report = report_of(api)
    path = f"/v1/audit/reports/{report['report_id']}"

    assert api.delete(path).status_code == 204

    assert_problem(api.delete(path), 410, "report_expired")
    for part in ("", "/findings", "/download"):
        assert_problem(api.get(path + part), 410, "report_expired")
        assert_problem(api.get(f"/v1/audit/reports/rpt_nobody{part}"), 404, "report_not_found")
    assert report["report_id"] not in [
        one["report_id"] for one in ok(api.get("/v1/audit/reports"))["items"]
    ]


def test_a_request_that_is_repeated_with_its_key_makes_one_report(api):
    headers = {"Idempotency-Key": "march"}
    first = api.post("/v1/audit/reports", json={}, headers=headers)
    again = api.post("/v1/audit/reports", json={}, headers=headers)

    assert ok(again, 202)["report_id"] == ok(first, 202)["report_id"]
    assert again.headers["idempotency-replayed"] == "true"
    other = api.post("/v1/audit/reports", json={"producer_group": "shop"}, headers=headers)
    assert_problem(other, 422, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({"kind": "everything"}, "/kind"),
        ({"from": "yesterday"}, "/from"),
        ({"from": "2026-03-02T00:00:00.000Z", "to": "2026-03-01T00:00:00.000Z"}, "/to"),
        ({"producer_group": "%"}, "/producer_group"),
        ({"checks": ["queues", "everything"]}, "/checks/1"),
        ({"checks": "all"}, "/checks"),
        ({"since": "2026-03-02T00:00:00.000Z"}, "/since"),
    ],
)
def test_what_no_report_can_be_about_is_refused_at_its_place(api, asked, pointer):
    assert_problem(api.post("/v1/audit/reports", json=asked), 422, "validation_failed", pointer)


def test_a_run_does_not_outlive_a_service_that_is_killed_and_the_next_one_makes_it_anew(tmp_path):
    with Server(tmp_path / "data", environment=PROGRAM) as server, server.client() as api:
        report = ok(api.post("/v1/audit/reports", json={"producer_group": "hangs"}), 202)
        said = tmp_path / "data" / "audit" / report["report_id"] / "pid"
        pid = int(until(lambda: said.is_file() and said.read_text(), "it has begun"))
        path = f"/v1/audit/reports/{report['report_id']}"
        until(
            lambda: ok(api.get(path)).get("progress") == {"tasks_done": 1, "tasks_known": 7},
            "it says how far it is",
        )

        server.kill()
        until(lambda: not is_there(pid), "the run is gone, too")
        server.start()
        anew = int(
            until(
                lambda: said.is_file() and said.read_text() != str(pid) and said.read_text(),
                "it begins anew",
            )
        )

        assert ok(api.get(path))["state"] == "running"
        assert server.terminate(signal.SIGTERM) == 0
        assert not is_there(anew), "a service that is told to end takes it with it"


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --------------------------------------------------------------------------------------------------
# without any report


@pytest.mark.parametrize("name", ["planted", "public-1"])
def test_the_proof_of_a_brokers_transaction_is_what_a_plain_audit_of_the_log_says(tmp_path, name):
    """Its ops have no key, its copies name none of the halves that count here."""
    store = tmp_path / "data" / "store"
    if name == "planted":
        broker_log.plant(store)
    else:
        unpacked(BROKERS / f"{name}.tar.xz", store.parent)
    segment_bytes = max(path.stat().st_size for path in (store / "commitlog").iterdir())
    small = {"ESCROWMQ_LOCAL__SEGMENT_BYTES": str(segment_bytes)} | LIKE_THE_BROKER
    expected = plain_audit.verdicts(plain_audit.read_log(store / "commitlog", end=1 << 40))

    with Server(tmp_path / "data", environment=small) as server, server.client() as api:
        proofs = {each: ok(api.get(f"/v1/audit/transactions/{each}")) for each in expected}

    assert {each: proof["verdict"] for each, proof in proofs.items()} == expected
    assert [each for each, proof in proofs.items() if proof["flags"]] == []


def test_the_proof_of_a_transaction_is_what_a_plain_audit_of_the_log_says(tmp_path):
    at_once = {"first_after_ms": 10, "interval_ms": 10, "max_answers": 1}
    with (
        Server(tmp_path / "data", environment={"ESCROWMQ_TXN__SWEEP_INTERVAL_MS": "10"}) as server,
        server.client() as api,
    ):

        def begin(name: str, *, check: dict | None = None, **message: object) -> str:
            messages = [
                {"topic": topic, "message": {"payload": name, **message}}
                for topic in ("orders", "bills", "orders")
            ]
            body = {
                "transaction_id": name,
                "producer_group": "shop",
                "messages": messages,
                "check": check or {},
            }
            return ok(api.post("/v1/transactions", json=body), 201)["transaction_id"]

        def hold(name: str) -> None:
            begin(name, check=at_once)
            asked = {"max_checks": 1, "wait_ms": 10_000}
            (check,) = ok(api.post("/v1/producer-groups/shop/checks/receive", json=asked))["checks"]
            answers = [{"check_id": check["check_id"], "decision": "unknown"}]
            ok(api.post("/v1/producer-groups/shop/checks/answer", json={"answers": answers}))
            until(lambda: ok(api.get(f"/v1/transactions/{name}"))["state"] == "held", "it is held")

        begin("open")
        ok(api.post(f"/v1/transactions/{begin('committed')}/commit"))
        ok(api.post(f"/v1/transactions/{begin('rolled-back')}/rollback"))
        ok(api.post(f"/v1/transactions/{begin('delayed', delay_ms=3_600_000)}/commit"))
        ok(api.post(f"/v1/transactions/{begin('delivered', delay_ms=1)}/commit"))
        for name in ("held", "late", "resumed"):
            hold(name)
        ok(
            api.post(
                "/v1/transactions/late/resolve",
                json={"decision": "commit", "reason": "seen in the database"},
            )
        )
        ok(api.post("/v1/transactions/resumed/resume"))
        until(
            lambda: [one["kind"] for one in records(api, "delivered")].count("final") == 3,
            "they are delivered",
        )
        proofs = {name: ok(api.get(f"/v1/audit/transactions/{name}")) for name in EXPECTED}
        segments = ok(api.get("/v1/audit/segments"))["items"]
        end = ok(api.post("/v1/admin/store/flush"))["synced_offset"]
        assert_problem(
            api.get("/v1/audit/transactions/nobody-began-it"), 404, "transaction_not_found"
        )
        server.terminate()

    log = plain_audit.read_log(tmp_path / "data" / "store" / "commitlog", end=end)
    assert (
        {name: proof["verdict"] for name, proof in proofs.items()}
        == EXPECTED
        == plain_audit.verdicts(log)
    )
    committed = proofs["committed"]
    assert (committed["producer_group"], committed["is_finding"], committed["flags"]) == (
        "shop",
        False,
        [],
    )
    assert [one["kind"] for one in committed["records"]] == ["half"] * 3 + ["final"] * 3 + ["op"]
    stored = {message.log_offset: message for message in log.messages}
    for record in committed["records"]:
        message = stored[record["log_offset"]]
        assert (record["topic"], record["queue_offset"]) == (
            message.queue.topic,
            message.queue_offset,
        )
    halves, finals, (op,) = (
        committed["records"][:3],
        committed["records"][3:6],
        committed["records"][6:],
    )
    assert [one["prepared_offset"] for one in finals] == [one["log_offset"] for one in halves]
    assert len({one["crc"] for one in (*halves, *finals)}) == 1
    assert (op["decision"], op["half_offsets"]) == (
        "commit",
        [one["queue_offset"] for one in halves],
    )
    assert [one["event"] for one in proofs["held"]["records"] if one["kind"] == "check"] == [
        "answered_unknown",
        "held",
    ]
    assert [(one["segment"], one["begin"], one["sealed"]) for one in segments] == [
        ("0" * 20, 0, False)
    ]
    assert segments[0]["first_stored_at"] <= committed["records"][0]["at"]


@pytest.mark.faults
def test_spark_itself_makes_the_report_of_a_running_service(tmp_path):
    with (
        Server(tmp_path / "data", environment={"ESCROWMQ_AUDIT__DRIVER_MEMORY": "512m"}) as server,
        server.client() as api,
    ):
        for name in ("one", "two", "three"):
            body = {"transaction_id": name, "producer_group": "shop", "messages": [MESSAGE]}
            ok(api.post("/v1/transactions", json=body), 201)
        for name, decision in (("one", "commit"), ("two", "rollback")):
            ok(api.post(f"/v1/transactions/{name}/{decision}"))
        asked = {"producer_group": "shop", "checks": ["queues", "duplicates"]}
        path = api.post("/v1/audit/reports", json=asked).headers["location"]

        def made() -> dict | None:
            now = ok(api.get(path))
            return now if now["state"] in ("done", "failed") else None

        report = until(made, "Spark has made it", seconds=600)

        assert (report["state"], report["balanced"], report["begun"]) == ("done", True, 3), (
            report.get("reason")
        )
        proofs = [
            ok(api.get(f"/v1/audit/transactions/{name}"))["verdict"]
            for name in ("one", "two", "three")
        ]
        assert sorted(name for name, count in report["verdicts"].items() if count) == sorted(proofs)
        assert report["run"]["log"] == "store"
        assert list(report["checks"]) == report["checks_asked"] == asked["checks"]
        assert report["checks"]["queues"]["queues"] > 1
        assert api.get(f"{path}/download", params={"format": "parquet"}).content[:4] == b"PAR1"
        assert "<svg" in api.get(f"{path}/download", params={"format": "html"}).text


LIKE_THE_BROKER = {
    "ESCROWMQ_LOCAL__QUEUE_FILE_ENTRIES": "1000",
    "ESCROWMQ_LOCAL__INDEX_SLOTS": "5000",
    "ESCROWMQ_LOCAL__INDEX_FILE_ENTRIES": "20000",
    "ESCROWMQ_LOCAL__RETENTION_MS": str(100 * 365 * 24 * 3_600_000),
}
MESSAGE = {"topic": "orders", "message": {"payload": "x"}}
EXPECTED = {
    "open": "undecided",
    "committed": "committed_once",
    "rolled-back": "rolled_back_clean",
    "delayed": "committed_once",
    "delivered": "committed_once",
    "held": "undecided_held",
    "late": "resolved_late",
    "resumed": "undecided",
}


def records(api, transaction_id: str) -> list[dict]:
    return ok(api.get(f"/v1/audit/transactions/{transaction_id}"))["records"]
