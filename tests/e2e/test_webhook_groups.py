"""Producer groups that are asked by webhook: what is configured, where a check may go, and secrets
that are shown once.
"""

import base64
import json

import pytest
from cryptography.fernet import Fernet

from tests.support.http import assert_problem, at_once, ok
from tests.support.server import Server

URL = "https://93.184.215.14/mq/check"
WEBHOOK = {"check_mode": "webhook", "check_url": URL, "timeout_ms": 3000, "concurrency": 16}


def own_secret(length: int) -> str:
    return "whsec_" + base64.b64encode(bytes(range(length))).decode()


OWN_SECRET, OTHER_SECRET = own_secret(24), own_secret(64)


@pytest.fixture
def path(topic) -> str:
    return f"/v1/producer-groups/of-{topic}"


def test_the_first_answer_holds_the_secret_and_no_later_one_does(api, path):
    made = ok(api.put(path, json=WEBHOOK), 201)

    secret = made.pop("signing_secret")
    assert secret.startswith("whsec_")
    assert {name: made[name] for name in WEBHOOK} == WEBHOOK
    assert made["revision"] == 1
    assert ok(api.get(path)) == made
    assert ok(api.put(path, json=WEBHOOK)) == made
    assert secret not in api.get(path).text


def test_of_changes_at_once_that_know_the_same_revision_one_is_made(api, path):
    ok(api.put(path, json=WEBHOOK), 201)
    known = {"If-Match": '"1"'}
    changes = [
        lambda n=n: api.put(path, json=WEBHOOK | {"timeout_ms": 1_000 + n}, headers=known)
        for n in range(6)
    ]
    changes += [lambda: api.post(f"{path}/rotate-secret", headers=known)] * 2

    answers = at_once(changes)

    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 7
    assert ok(api.get(path))["revision"] == 2


def test_what_is_left_out_has_a_default(api, path):
    made = ok(api.put(path, json={"check_mode": "webhook", "check_url": URL}), 201)

    assert (made["timeout_ms"], made["concurrency"]) == (15_000, 4)


def test_a_change_keeps_the_secret_and_raises_the_revision(api, path):
    ok(api.put(path, json=WEBHOOK), 201)

    changed = api.put(path, json=WEBHOOK | {"timeout_ms": 5_000}, headers={"If-Match": '"1"'})

    assert changed.headers["etag"] == '"2"'
    assert "signing_secret" not in ok(changed)
    assert ok(api.get(path))["timeout_ms"] == 5_000
    assert_problem(
        api.put(path, json=WEBHOOK, headers={"If-Match": '"1"'}), 412, "revision_mismatch"
    )


def test_a_put_does_not_change_in_silence_where_checks_are_sent(api, path, server):
    made = ok(api.put(path, json=WEBHOOK), 201)
    made.pop("signing_secret")
    other = URL + "/other"

    for equal in ({}, {"check_mode": "webhook"}, {"check_url": URL}, {"timeout_ms": 3_000}):
        assert ok(api.put(path, json=equal)) == made
    refused = assert_problem(
        api.put(path, json=WEBHOOK | {"check_url": other}), 409, "check_conflict", "/check_url"
    )
    assert refused["errors"][0]["detail"] == f'it is "{URL}", the request has "{other}"'
    assert_problem(api.put(path, json={"check_mode": "poll"}), 409, "check_conflict", "/check_mode")
    assert ok(api.get(path)) == made

    slower = ok(api.put(path, json={"timeout_ms": 9_000}))
    assert slower == made | {"timeout_ms": 9_000, "revision": 2}
    replaced = ok(
        api.put(
            path, json={"check_mode": "webhook", "check_url": other}, headers={"If-Match": '"2"'}
        )
    )
    assert replaced == made | {
        "check_url": other,
        "timeout_ms": 15_000,
        "concurrency": 4,
        "revision": 3,
    }
    lines = [
        json.loads(line) for line in server.log().splitlines() if "producer_group_changed" in line
    ]
    assert [
        line["fields"] for line in lines if line["producer_group"] == made["producer_group"]
    ] == [
        ["timeout_ms"],
        ["check_url", "concurrency", "timeout_ms"],
    ]


def test_a_polled_group_may_become_one_that_is_asked_and_be_polled_again(api, path):
    ok(api.put(path), 201)

    first = ok(api.put(path, json=WEBHOOK))
    polled = ok(api.put(path, json={"check_mode": "poll"}, headers={"If-Match": "*"}))
    second = ok(api.put(path, json=WEBHOOK))

    assert [first["revision"], polled["revision"], second["revision"]] == [2, 3, 4]
    assert not {"check_url", "timeout_ms", "concurrency", "signing_secret"} & set(polled)
    assert first["signing_secret"] != second["signing_secret"]


def test_a_secret_is_replaced_while_the_old_one_goes_on_for_a_day(api, path):
    first = ok(api.put(path, json=WEBHOOK), 201)

    rotated = ok(api.post(f"{path}/rotate-secret"))

    assert rotated["signing_secret"] != first["signing_secret"]
    assert rotated["previous_secret_expires_at"] > first["created_at"]
    assert rotated["revision"] == 2
    found = ok(api.get(path))
    assert found == {name: value for name, value in rotated.items() if name != "signing_secret"}


def test_a_put_with_the_same_own_secret_again_changes_nothing_and_no_answer_has_it(
    api, path, server
):
    own = WEBHOOK | {"signing_secret": OWN_SECRET}

    made = api.put(path, json=own)
    again = api.put(path, json=own)
    found = api.get(path)

    assert ok(made, 201) == ok(again) == ok(found)
    assert ok(found)["revision"] == 1
    for answer in (made, again, found):
        assert "signing_secret" not in answer.json()
        assert OWN_SECRET not in answer.text
    assert OWN_SECRET.removeprefix("whsec_") not in server.log()


def test_another_own_secret_replaces_the_first_which_goes_on_for_a_day(api, path):
    first = ok(api.put(path, json=WEBHOOK | {"signing_secret": OWN_SECRET}), 201)

    replaced = ok(api.put(path, json={"signing_secret": OTHER_SECRET}))
    again = ok(api.put(path, json={"signing_secret": OTHER_SECRET}))
    kept = ok(api.put(path, json=WEBHOOK))

    assert "previous_secret_expires_at" not in first
    assert replaced["previous_secret_expires_at"] > first["created_at"]
    assert replaced["revision"] == 2
    assert replaced == again == kept
    assert "signing_secret" not in replaced


def test_who_has_no_secret_cannot_replace_it(api, path):
    assert_problem(api.post(f"{path}/rotate-secret"), 404, "producer_group_not_found")
    ok(api.put(path), 201)

    assert_problem(api.post(f"{path}/rotate-secret"), 422, "unsupported_combination")
    assert_problem(api.post(f"{path}/rotate-secret", json={"x": 1}), 422, "validation_failed", "/x")


@pytest.mark.parametrize(
    "url",
    ["http://93.184.215.14/", "https://127.0.0.1/", "https://localhost/", "https://[::1]/",
    "https://169.254.169.254/", "x",
     "https://10.0.0.1/", "https://0x7f.1/", "https://2130706433/", "https://a@93.184.215.14/",
     "https://93.184.215.14:8443/",
     "https://93.184.215.14/#x", "https://[::ffff:127.0.0.1]/"],
)  # fmt: skip
def test_a_url_that_no_check_may_go_to_is_refused_and_nothing_is_changed(api, path, url):
    assert_problem(
        api.put(path, json=WEBHOOK | {"check_url": url}), 422, "check_url_refused", "/check_url"
    )

    assert_problem(api.get(path), 404, "producer_group_not_found")


@pytest.mark.parametrize("url", ["http://93.184.215.14/", "https://10.0.0.1/", "https://[::1]/"])
def test_a_url_that_the_operator_may_allow_names_the_setting(api, path, url):
    problem = assert_problem(
        api.put(path, json=WEBHOOK | {"check_url": url}), 422, "check_url_refused"
    )

    assert "ESCROWMQ_WEBHOOK__ALLOWED_HOSTS" in problem["detail"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"check_mode": "webhook"}, "/check_url"),
        (WEBHOOK | {"check_mode": "poll"}, "/check_url"),
        ({"timeout_ms": 1}, "/timeout_ms"),
        (WEBHOOK | {"timeout_ms": 0}, "/timeout_ms"),
        (WEBHOOK | {"concurrency": 0}, "/concurrency"),
        (WEBHOOK | {"check_url": ""}, "/check_url"),
        (WEBHOOK | {"check_url": URL + "x" * 2_048}, "/check_url"),
        (WEBHOOK | {"signing_secret": "whsec_x"}, "/signing_secret"),
        (WEBHOOK | {"signing_secret": OWN_SECRET.removeprefix("whsec_")}, "/signing_secret"),
        (WEBHOOK | {"signing_secret": own_secret(23)}, "/signing_secret"),
        (WEBHOOK | {"signing_secret": own_secret(65)}, "/signing_secret"),
        (WEBHOOK | {"signing_secret": OWN_SECRET + "\n"}, "/signing_secret"),
        ({"signing_secret": OWN_SECRET}, "/signing_secret"),
        (WEBHOOK | {"check_mode": "push"}, "/check_mode"),
    ],
)
def test_a_field_that_is_wrong_is_named(api, path, fields, pointer):
    assert_problem(api.put(path, json=fields), 422, "validation_failed", pointer)


@pytest.mark.parametrize("own", [None, OWN_SECRET], ids=["made", "own"])
def test_a_secret_survives_a_restart_encrypted_and_is_not_in_the_log(tmp_path, own):
    keys = [Fernet.generate_key().decode() for _ in range(2)]
    environment = {
        "ESCROWMQ_WEBHOOK__ENCRYPTION_KEYS": json.dumps(keys[:1]),
        "ESCROWMQ_LOG_LEVEL": "debug",
    }
    server = Server(tmp_path / "data", environment=environment)
    with server, server.client() as api:
        body = WEBHOOK if own is None else WEBHOOK | {"signing_secret": own}
        made = ok(api.put("/v1/producer-groups/shop", json=body), 201)
        secret = own or made.pop("signing_secret")
        assert server.terminate() == 0

        server.start()
        assert ok(api.get("/v1/producer-groups/shop")) == made
        assert ok(api.put("/v1/producer-groups/shop", json=body)) == made
        server.terminate()

    stored = b"".join(file.read_bytes() for file in server.data_dir.glob("registry.db*"))
    assert b"fernet:" in stored
    for hidden in (secret, keys[0]):
        assert hidden.removeprefix("whsec_").encode() not in stored
        assert hidden.removeprefix("whsec_") not in server.log()

    # The keys as they are now are not those that it was encrypted with.
    other = Server(
        server.data_dir, environment={"ESCROWMQ_WEBHOOK__ENCRYPTION_KEYS": json.dumps(keys[1:])}
    )
    other.start(until_ready=False)
    assert other.wait() == 78
    assert "encrypted with none of the keys" in other.log()


def test_a_key_that_is_none_ends_the_start_and_is_not_repeated(tmp_path):
    server = Server(
        tmp_path / "data", environment={"ESCROWMQ_WEBHOOK__ENCRYPTION_KEYS": '["hunter2"]'}
    )

    server.start(until_ready=False)

    assert server.wait() == 78
    assert "ESCROWMQ_WEBHOOK" in server.log()
    assert "hunter2" not in server.log()
