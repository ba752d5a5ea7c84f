"""Consumer groups whose members own queues, over HTTP: who owns what, who may commit, and who is
told when.
"""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from pytest_escrowmq.service import EscrowMQ
from tests.support.http import assert_problem, ok, until
from tests.support.server import Server

SESSION_MS = 30_000
UNKNOWN = "mem_rJZHZGfSqG0AAAAAAAAAAA"
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def escrowmq_service(tmp_path_factory) -> Iterator[EscrowMQ]:
    """One for all tests here: each has a topic and a group of its own."""
    with EscrowMQ(tmp_path_factory.mktemp("escrowmq")) as service:
        yield service


@pytest.fixture
def api(escrowmq) -> httpx.Client:
    return escrowmq.client


class Group:
    """A group of a topic of four queues with five messages each."""

    def __init__(self, api: httpx.Client, **settings: Any) -> None:
        number = next(numbers)
        self.api, self.topic, self.name = api, f"orders-{number}", f"billing-{number}"
        self.path = f"/v1/groups/{self.name}"
        ok(api.post("/v1/topics", json={"topic": self.topic, "queues": 4}), 201)
        for queue in range(4):
            entries = [{"message": {"json": n, "queue_id": queue}} for n in range(5)]
            ok(api.post(f"/v1/topics/{self.topic}/messages/batch", json={"entries": entries}), 201)
        if settings:
            ok(api.put(self.path, json={"topics": [{"topic": self.topic}], **settings}), 201)

    def try_join(self, client_id: str = "a", **fields: Any) -> httpx.Response:
        body = {
            "client_id": client_id,
            "topics": [{"topic": self.topic}],
            "session_timeout_ms": SESSION_MS,
            **fields,
        }
        return self.api.post(f"{self.path}/members", json=body)

    def join(self, client_id: str = "a", **fields: Any) -> "Member":
        return Member(self, ok(self.try_join(client_id, **fields), 201))

    def members(self) -> list[dict[str, Any]]:
        return ok(self.api.get(f"{self.path}/members"))["items"]

    def owners(self) -> dict[str, list[int]]:
        return {
            one["client_id"]: [queue["queue_id"] for queue in one["assignment"]]
            for one in self.members()
        }

    def place(self, queue: int, **fields: Any) -> dict[str, Any]:
        return {"topic": self.topic, "queue_id": queue, **fields}

    def offsets(self, **query: Any) -> dict[int, int]:
        found = ok(self.api.get(f"{self.path}/offsets", params=query))["items"]
        return {one["queue_id"]: one["offset"] for one in found}

    def commit(self, offsets: dict[int, int], **fields: Any) -> httpx.Response:
        body = {"offsets": [self.place(n, offset=offset) for n, offset in offsets.items()]}
        return self.api.put(f"{self.path}/offsets", json=body | fields)

    def receive(self) -> httpx.Response:
        return self.api.post(f"{self.path}/receive", json={"max_messages": 1})


class Member:
    """A member, with the last answer that has its assignment."""

    def __init__(self, group: Group, told: dict[str, Any]) -> None:
        self.group, self.id, self.told = group, told["member_id"], told
        self.path = f"{group.path}/members/{self.id}"

    @property
    def queues(self) -> list[int]:
        return [one["queue_id"] for one in self.told["assignment"]]

    def try_heartbeat(self, **fields: Any) -> httpx.Response:
        body = {"generation": self.told["generation"], **fields}
        return self.group.api.post(f"{self.path}/heartbeat", json=body)

    def heartbeat(self, **fields: Any) -> dict[str, Any]:
        self.told = ok(self.try_heartbeat(**fields))
        return self.told

    def commit(self, offsets: dict[int, int]) -> httpx.Response:
        return self.group.commit(offsets, member_id=self.id, generation=self.told["generation"])

    def lock(self, *queues: int, what: str = "locks") -> httpx.Response:
        body = {"member_id": self.id, "queues": [self.group.place(n) for n in queues]}
        return self.group.api.post(f"{self.group.path}/{what}", json=body)

    def leave(self) -> None:
        assert self.group.api.delete(self.path).status_code == 204


@pytest.fixture
def group(api) -> Group:
    return Group(api)


# --------------------------------------------------------------------------------------------------
# members


def test_the_first_member_creates_the_group_and_owns_every_queue(group):
    told = ok(group.try_join("billing-7f"), 201)

    assert told["member_id"].startswith("mem_")
    assert told["heartbeat_interval_ms"] == SESSION_MS // 3
    assert told["assignment"] == [group.place(n, offset=0) for n in range(4)]
    (member,) = group.members()
    assert (member["client_id"], member["lag"], member["strategy"]) == ("billing-7f", 20, "average")
    assert [queue["lag"] for queue in member["assignment"]] == [5, 5, 5, 5]
    assert member["joined_at"] <= member["last_heartbeat_at"] < member["expires_at"]
    assert ok(group.api.get(group.path))["topics"][0]["topic"] == group.topic


def test_a_second_member_takes_half_of_the_queues_and_the_first_is_told(group):
    first, second = group.join("a"), group.join("b")

    told = first.heartbeat()

    assert (first.queues, second.queues) == ([0, 1], [2, 3])
    assert told["revoked"] == [group.place(2), group.place(3)]
    assert first.heartbeat()["revoked"] == []


def test_a_heartbeat_that_waits_is_answered_when_another_member_joins(group):
    first = group.join("a")

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.heartbeat, wait_ms=30_000)
        until(lambda: _waits(group.api), "a heartbeat that waits")
        second = group.join("b")

    assert waiting.result()["generation"] == second.told["generation"]
    assert first.queues == [0, 1]


def test_a_heartbeat_of_an_older_generation_is_answered_at_once(group):
    first = group.join("a")
    group.join("b")

    assert first.heartbeat(wait_ms=30_000)["revoked"] == [group.place(2), group.place(3)]


def test_a_heartbeat_that_may_not_wait_keeps_its_session_and_is_refused(tmp_path):
    with (
        Server(tmp_path / "data", environment={"ESCROWMQ_HTTP__MAX_WAITING": "1"}) as server,
        server.client() as api,
        server.client() as waiting_api,
        ThreadPoolExecutor(1) as pool,
    ):
        group = Group(api)
        first = group.join("a")
        (joined,) = group.members()
        outdated = Member(group, dict(first.told))
        ok(api.post("/v1/topics", json={"topic": "empty", "queues": 1}), 201)
        path = "/v1/topics/empty/queues/0/messages"
        waiting = pool.submit(waiting_api.get, path, params={"wait_ms": 30_000})
        until(lambda: _waits(api), "a pull that waits")

        refused = first.try_heartbeat(wait_ms=30_000)
        (kept,) = group.members()
        second = group.join("b")
        told = outdated.heartbeat(wait_ms=30_000)
        ok(api.post("/v1/topics/empty/messages", json={"payload": "x"}), 201)

        assert_problem(refused, 429, "too_many_waiting")
        assert kept["last_heartbeat_at"] > joined["last_heartbeat_at"]
        assert kept["expires_at"] > joined["expires_at"]
        assert told["generation"] == second.told["generation"], "one that is answered at once"
        assert waiting.result().status_code == 200


def test_the_queues_of_a_member_that_leaves_are_free_at_once(group):
    first, second = group.join("a"), group.join("b")

    first.leave()

    assert group.owners() == {"b": [0, 1, 2, 3]}
    assert second.heartbeat()["assignment"][0] == group.place(0, offset=0)
    for refused in (first.try_heartbeat(), group.api.delete(first.path), first.lock(0)):
        assert_problem(refused, 404, "member_not_found")


def test_a_member_that_is_not_heard_of_loses_its_queues(escrowmq, group):
    first, second = group.join("a"), group.join("b")
    escrowmq.advance(ms=SESSION_MS - 10_000)
    second.heartbeat()

    escrowmq.advance(ms=10_000)

    assert group.owners() == {"b": [0, 1, 2, 3]}
    assert_problem(first.try_heartbeat(), 404, "member_not_found")
    assert_problem(first.commit({0: 1}), 409, "fenced")


def test_the_session_timeout_of_the_group_is_that_of_members_that_ask_for_none(escrowmq, api):
    group = Group(api, session_timeout_ms=90_000)
    body = {"client_id": "a", "topics": [{"topic": group.topic}]}
    told = ok(api.post(f"{group.path}/members", json=body), 201)

    escrowmq.advance(ms=80_000)
    there = len(group.members())
    escrowmq.advance(ms=10_000)

    assert told["heartbeat_interval_ms"] == 30_000
    assert (there, len(group.members())) == (1, 0)


def test_added_queues_are_shared_out(escrowmq, group):
    member = group.join("a")

    ok(group.api.patch(f"/v1/topics/{group.topic}", json={"queues": 6}))
    escrowmq.advance(ms=1)

    member.heartbeat()
    assert member.queues == [0, 1, 2, 3, 4, 5]


def test_members_of_a_deleted_topic_own_none_of_its_queues(group):
    member = group.join("a")

    deleted = group.api.delete(f"/v1/topics/{group.topic}", params={"force": "true"})

    assert deleted.status_code == 204
    assert member.heartbeat()["assignment"] == []


def test_members_are_listed_in_pages(group):
    names = [f"c{number}" for number in range(5)]
    for name in names:
        group.join(name)

    found: list[str] = []
    query: dict[str, Any] = {"page_size": 2}
    while query:
        page = ok(group.api.get(f"{group.path}/members", params=query))
        found += [one["client_id"] for one in page["items"]]
        token = page.get("next_page_token")
        query = {"page_size": 2, "page_token": token} if token else {}

    assert sorted(found) == names
    wrong = group.api.get(f"{group.path}/members", params={"page_token": "x"})
    assert_problem(wrong, 400, "invalid_page_token")


def test_members_go_with_their_group(group):
    member = group.join("a")

    assert group.api.delete(group.path).status_code == 204

    assert_problem(member.try_heartbeat(), 404, "group_not_found")
    ok(group.try_join("b"), 201)
    assert group.owners() == {"b": [0, 1, 2, 3]}


def test_members_locks_and_offsets_survive_a_killed_service(tmp_path):
    with Server(tmp_path / "data", dev=False) as server:
        with server.client() as api:
            group = Group(api)
            first, second = group.join("a"), group.join("b")
            first.heartbeat(offsets=[group.place(0, offset=3)])
            ok(second.lock(2))
        server.kill()
        server.start()
        with server.client() as api:
            group.api = api

            assert group.owners() == {"a": [0, 1], "b": [2, 3]}
            assert first.heartbeat()["assignment"][0] == group.place(0, offset=3)
            (_, locked) = group.members()
            assert [queue["locked"] for queue in locked["assignment"]] == [True, False]
            ok(first.commit({0: 4}))


# --------------------------------------------------------------------------------------------------
# strategies


@pytest.mark.parametrize(
    ("strategy", "first", "second"),
    [("average", [0, 1], [2, 3]), ("circle", [0, 2], [1, 3]), ("sticky", [0, 1], [2, 3])],
)
def test_members_share_queues_by_the_strategy_of_the_first(group, strategy, first, second):
    group.join("a", strategy=strategy)
    group.join("b", strategy=strategy)

    assert group.owners() == {"a": first, "b": second}
    other = "sticky" if strategy == "average" else "average"
    assert_problem(group.try_join("c", strategy=other), 409, "group_active")
    assert_problem(group.try_join("c", strategy=strategy, broadcast=True), 409, "group_active")
    assert len(group.members()) == 2


def test_by_hand_each_member_owns_what_it_named(group):
    group.join("a", strategy="manual", queues=[group.place(3), group.place(0)])
    group.join("b", strategy="manual", queues=[group.place(0), group.place(1)])

    assert group.owners() == {"a": [0, 3], "b": [1]}


def test_queues_stay_in_their_room(escrowmq, api):
    group = Group(api)
    rooms = {f"{group.topic}/{n}": "north" if n < 3 else "south" for n in range(4)}
    topics = [{"topic": group.topic}]
    ok(api.put(group.path, json={"topics": topics, "queue_rooms": rooms}), 201)
    group.join("a", strategy="machine_room", room="north")
    group.join("b", strategy="machine_room", room="south")
    before = group.owners()

    ok(api.put(group.path, json={"queue_rooms": {f"{group.topic}/0": "south"}}))
    escrowmq.advance(ms=1)

    assert before == {"a": [0, 1, 2], "b": [3]}
    assert group.owners()["b"][0] == 0


# --------------------------------------------------------------------------------------------------
# offsets


def test_a_heartbeat_commits_offsets_but_those_of_queues_that_the_member_lost(group):
    first = group.join("a")
    second = group.join("b")

    told = first.heartbeat(
        offsets=[group.place(1, offset=2), group.place(2, offset=5), group.place(3, offset=5)]
    )

    assert told["refused"] == [group.place(2), group.place(3)]
    assert group.offsets() == {1: 2}
    assert "refused" not in second.heartbeat(offsets=[group.place(2, offset=1)])
    assert group.offsets() == {1: 2, 2: 1}


def test_a_commit_of_a_member_that_lost_the_queue_is_fenced_and_changes_nothing(group):
    first, second = group.join("a"), group.join("b")
    ok(second.commit({2: 4}))

    for refused in (
        first.commit({0: 1, 2: 1}),
        group.commit({0: 1}, member_id=UNKNOWN),
        group.commit({0: 1}, member_id=second.id),
    ):
        assert_problem(refused, 409, "fenced")

    assert group.offsets() == {2: 4}


def test_a_queue_that_came_back_takes_no_commit_from_before_it_was_lost(group):
    first, second = group.join("a"), group.join("b")
    ok(second.commit({3: 4}))
    second.leave()

    assert_problem(first.commit({3: 1}), 409, "fenced")

    assert group.offsets() == {3: 4}
    first.heartbeat()
    ok(first.commit({3: 5}))


def test_while_there_are_members_nobody_else_sets_offsets_or_receives(group):
    first = group.join("a")
    handle = {"entries": [{"receipt_handle": "lh_rJZHZGfSqG0AAAAAAAAAABZxB2cVYQAB"}]}
    reset = {"topic": group.topic, "to": "latest"}

    refused = [
        group.commit({0: 1}),
        group.receive(),
        group.api.post(f"{group.path}/offsets/reset", json=reset),
        *(
            group.api.post(f"{group.path}/{what}", json=handle)
            for what in ("ack", "nack", "extend", "dead-letter")
        ),
    ]
    for answer in refused:
        assert_problem(answer, 409, "group_active")
    assert group.offsets() == {}

    first.leave()
    ok(group.commit({0: 1}))
    assert len(ok(group.receive())["messages"]) == 1


def test_a_receive_that_waits_is_refused_once_a_member_has_joined(group):
    ok(group.commit(dict.fromkeys(range(4), 5)))
    ok(group.api.put(group.path, json={"topics": [{"topic": group.topic}]}))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group.api.post, f"{group.path}/receive", json={"wait_ms": 30_000})
        until(lambda: _waits(group.api), "a receive that waits")
        group.join("a")
        ok(group.api.post(f"/v1/topics/{group.topic}/messages", json={"json": 1}), 201)

    assert_problem(waiting.result(), 409, "group_active")


def test_an_ack_of_a_member_that_is_none_any_more_is_fenced(group):
    first = group.join("a")
    entries = [{"receipt_handle": "lh_rJZHZGfSqG0AAAAAAAAAABZxB2cVYQAB"}]

    def ack(**fields: Any) -> httpx.Response:
        return group.api.post(f"{group.path}/ack", json={"entries": entries, **fields})

    assert_problem(ack(member_id=first.id), 409, "group_active")
    generation = first.told["generation"]
    group.join("b")
    assert_problem(ack(member_id=first.id, generation=generation), 409, "fenced")
    assert_problem(ack(member_id=UNKNOWN), 409, "fenced")


def test_no_member_joins_a_group_whose_messages_are_leased(group):
    ok(group.api.put(group.path, json={"topics": [{"topic": group.topic}]}), 201)
    (leased,) = ok(group.receive())["messages"]

    assert_problem(group.try_join("a"), 409, "group_active")

    entries = [{"receipt_handle": leased["receipt_handle"]}]
    ok(group.api.post(f"{group.path}/ack", json={"entries": entries}))
    assert group.join("a").told["assignment"][leased["queue_id"]]["offset"] == 1


def test_no_member_joins_a_group_with_a_waiting_retry_until_its_offsets_are_reset(group):
    ok(group.api.put(group.path, json={"topics": [{"topic": group.topic}]}), 201)
    (leased,) = ok(group.receive())["messages"]
    entries = [{"receipt_handle": leased["receipt_handle"], "delay_ms": 60_000}]
    ok(group.api.post(f"{group.path}/nack", json={"entries": entries}))

    assert_problem(group.try_join("a"), 409, "group_active")
    ok(group.api.post(f"{group.path}/offsets/reset", json={"topic": group.topic, "to": "earliest"}))
    first = group.join("a")
    assert all(queue["offset"] == 0 for queue in first.told["assignment"])
    group.join("b")


def test_a_member_begins_where_the_group_starts(api):
    group = Group(api, start="latest")

    assert group.join("a").told["assignment"] == [group.place(n, offset=5) for n in range(4)]


def test_the_join_that_creates_the_group_says_where_it_starts(api):
    by_time, fresh = Group(api), Group(api)
    times = {"start": "time", "start_at": "2999-01-01T00:00:00Z"}

    told = by_time.join("a", **times).told
    as_rocketmq = fresh.join("a", start="rocketmq").told

    assert [one["offset"] for one in told["assignment"]] == [5, 5, 5, 5]
    assert [one["offset"] for one in as_rocketmq["assignment"]] == [0, 0, 0, 0]
    seen = ok(api.get(by_time.path))
    assert (seen["start"], seen["start_at"]) == ("time", "2999-01-01T00:00:00.000Z")
    by_time.join("b", **times)
    by_time.join("c")
    other = by_time.try_join("d", start="earliest")
    assert_problem(other, 409, "filter_conflict", "/start")
    later = by_time.try_join("d", start="time", start_at="2998-01-01T00:00:00Z")
    assert_problem(later, 409, "filter_conflict", "/start_at")


def test_each_client_of_a_broadcast_group_has_its_own_offsets(group):
    first, second = group.join("a", broadcast=True), group.join("b", broadcast=True)
    ok(first.commit({0: 3}))
    second.heartbeat(offsets=[group.place(0, offset=4)])
    first.leave()

    again = group.join("a", broadcast=True)

    assert (again.queues, second.queues) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert again.told["assignment"][0]["offset"] == 3
    assert group.offsets(member_id=again.id) == {0: 3}
    assert group.offsets(member_id=second.id, topic=group.topic) == {0: 4}
    assert group.offsets() == {}
    missing = group.api.get(f"{group.path}/offsets", params={"member_id": UNKNOWN})
    assert_problem(missing, 404, "member_not_found")


def test_a_member_with_another_filter_is_refused(group):
    filtered = [{"topic": group.topic, "filter": {"expression": "paid"}}]
    group.join("a", topics=filtered)

    other = [{"topic": group.topic, "filter": {"expression": "created"}}]
    refused = group.try_join("b", topics=other)

    assert_problem(refused, 409, "filter_conflict", "/topics/0/filter")
    assert group.owners() == {"a": [0, 1, 2, 3]}
    group.join("b", topics=filtered)
    group.join("c")  # one that names no filter has the group's
    assert len(group.members()) == 3


def test_a_member_brings_topics_that_the_group_did_not_read(escrowmq, group):
    first = group.join("a")
    other = f"{group.topic}-more"
    ok(group.api.post("/v1/topics", json={"topic": other, "queues": 1}), 201)

    second = group.join("b", topics=[{"topic": group.topic}, {"topic": other}])

    assert second.told["assignment"][-1] == {"topic": other, "queue_id": 0, "offset": 0}
    assert {one["topic"] for one in first.heartbeat()["assignment"]} == {group.topic}


# --------------------------------------------------------------------------------------------------
# locks


def test_a_queue_is_locked_by_one_member_at_a_time(group):
    first = group.join("a")
    locked = ok(first.lock(0, 2))
    second = group.join("b")

    assert locked["locked"] == [group.place(0), group.place(2)]
    refused = ok(second.lock(2, 3))
    assert refused["refused"] == [group.place(2, owner=first.id)]
    assert refused["locked"] == [group.place(3)]

    assert ok(first.lock(2, 3, what="locks/release"))["released"] == [group.place(2)]
    assert ok(second.lock(2))["refused"] == []


def test_a_lock_expires_unless_it_is_renewed(escrowmq, group):
    first = group.join("a", session_timeout_ms=3_600_000)
    ok(first.lock(0, 3))
    second = group.join("b", session_timeout_ms=3_600_000)

    escrowmq.advance(seconds=59)
    ok(first.lock(0))
    before = ok(second.lock(3))
    escrowmq.advance(seconds=2)
    after = ok(second.lock(3))

    assert [len(one["refused"]) for one in (before, after)] == [1, 0]
    (left,) = [one for one in group.members() if one["member_id"] == first.id]
    assert left["assignment"][0]["locked"]


def test_a_lock_of_a_queue_that_is_not_the_members_own_is_fenced(group):
    first = group.join("a")
    group.join("b")

    assert_problem(first.lock(0, 2), 409, "fenced")

    assert ok(first.lock(0, 1))["refused"] == []


def test_the_lock_of_a_silent_member_holds_until_it_expires(escrowmq, group):
    first, second = group.join("a"), group.join("b", session_timeout_ms=3_600_000)
    ok(first.lock(0))

    escrowmq.advance(ms=SESSION_MS + 1)
    second.heartbeat()
    before = ok(second.lock(0))
    escrowmq.advance(seconds=31)

    assert (before["refused"], second.queues) == ([group.place(0, owner=first.id)], [0, 1, 2, 3])
    assert ok(second.lock(0))["locked"] == [group.place(0)]


# --------------------------------------------------------------------------------------------------
# bad input


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"strategy": "fair"}, "/strategy"),
        ({"client_id": ""}, "/client_id"),
        ({"client_id": "a\u0000"}, "/client_id"),
        ({"session_timeout_ms": 999}, "/session_timeout_ms"),
        ({"session_timeout_ms": 3_600_001}, "/session_timeout_ms"),
        ({"topics": []}, "/topics"),
        ({"topics": [{"topic": "no-such-topic"}]}, "/topics/0/topic"),
        ({"topics": [{"topic": "a b"}]}, "/topics/0/topic"),
        ({"strategy": "manual"}, "/queues"),
        ({"queues": [{"topic": "no-such-topic", "queue_id": 0}]}, "/queues"),
        ({"strategy": "manual", "queues": [{"topic": "x", "queue_id": 0}]}, "/queues/0/topic"),
        ({"strategy": "manual", "queues": [{"topic": "a b", "queue_id": 0}]}, "/queues/0/topic"),
        ({"room": "north"}, "/room"),
        ({"start": "time"}, "/start_at"),
        ({"start_at": "2026-03-02T00:00:00Z"}, "/start_at"),
        ({"start": "time", "start_at": "yesterday"}, "/start_at"),
        ({"color": "red"}, "/color"),
    ],
)
def test_a_join_that_makes_no_sense_is_refused_and_leaves_no_group(group, fields, pointer):
    assert_problem(group.try_join(**fields), 422, "validation_failed", pointer)
    assert_problem(group.api.get(group.path), 404, "group_not_found")


def test_a_reserved_topic_is_refused_with_its_place(group):
    reserved = {"topic": f"%RETRY%{group.name}", "queue_id": 0}
    by_hand = group.try_join(strategy="manual", queues=[group.place(0), reserved])
    assert_problem(by_hand, 422, "reserved_topic", "/queues/1/topic")
    joined = group.try_join(topics=[{"topic": reserved["topic"]}])
    assert_problem(joined, 422, "reserved_topic", "/topics/0/topic")


def test_queues_that_do_not_exist_are_refused(group):
    missing = [group.place(4)]
    by_hand = group.try_join(strategy="manual", queues=missing)
    assert_problem(by_hand, 422, "validation_failed", "/queues/0/queue_id")
    member = group.join("a")

    for what in ("locks", "locks/release"):
        refused = member.lock(0, 4, what=what)
        assert_problem(refused, 422, "validation_failed", "/queues/1/queue_id")
    beyond = member.try_heartbeat(offsets=[group.place(0, offset=1), group.place(1, offset=6)])
    assert_problem(beyond, 400, "offset_beyond_end", "/offsets/1")
    lost = group.commit({0: 1}, generation=1)
    assert_problem(lost, 422, "validation_failed", "/generation")

    assert group.offsets() == {}
    assert not any(queue["locked"] for queue in group.members()[0]["assignment"])


def test_members_of_a_group_that_does_not_exist_are_not_found(api):
    for answer in (
        api.get("/v1/groups/no-such-group/members"),
        api.post(f"/v1/groups/no-such-group/members/{UNKNOWN}/heartbeat", json={"generation": 0}),
        api.delete(f"/v1/groups/no-such-group/members/{UNKNOWN}"),
    ):
        assert_problem(answer, 404, "group_not_found")


def _waits(api: httpx.Client) -> bool:
    """Does a long poll wait now?"""
    return "escrowmq_long_polls_open 1.0" in api.get("/metrics").text
