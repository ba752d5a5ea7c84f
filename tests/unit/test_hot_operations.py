"""Requests that are done together in one turn of the loop, and what becomes of each if that
fails.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

from app.bodies.budget import BodyBudget
from app.observability.metrics import Metrics
from app.server.hot import Asked, HotParts, HotTurn
from storage.errors import MessageTooLarge
from tests.support.two_ways import Way
from txn import plain as plain_transactions
from txn.plain import Decided
from txn.states import TxnState

SEND = "/v1/topics/orders/messages"
LARGE = b'{"payload":"%b"}' % (b"x" * 15_000)
SERVICES: Any = SimpleNamespace(pressure_header=dict)
MANY = 40  # of them are more than is done together


def post(path: str, body: bytes) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def played(way: Way, play: Callable[[Way], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with way:
            return await play(way)

    return asyncio.run(run())


def test_a_connection_is_still_answered_when_its_request_was_refused_in_the_turn_that_took_it(
    tmp_path,
):
    async def play(way: Way) -> tuple[list[bytes], list[bytes]]:
        for _ in range(2):
            await way.ask(post(SEND, LARGE))
        taken = way.taken
        first = await asyncio.gather(
            *(way.ask(post(SEND, LARGE), connection=number) for number in range(MANY))
        )
        assert way.taken - taken == MANY
        again = await asyncio.gather(
            *(way.ask(post(SEND, b'{"payload":"x"}'), connection=number) for number in range(MANY))
        )
        return [one[9:12] for one in first], [one[9:12] for one in again]

    first, again = played(Way(tmp_path, is_direct=True, max_queued_bytes=1 << 16), play)

    assert set(first) == {b"201", b"503"}
    assert again == [b"201"] * MANY


def test_sends_of_one_turn_are_answered_each_by_itself_whatever_the_others_ask_for(tmp_path):
    """Topics and durabilities differ, a key and a tag are wrong, and one topic is reserved."""
    plain, durable = [
        b'{"payload":"x","require_durability":"%b"}' % word for word in (b"buffered", b"synced")
    ]
    bills, reserved = SEND.replace("orders", "bills"), SEND.replace("orders", "rmq_sys_x")
    wanted = [
        (SEND, plain, "buffered"),
        (SEND, durable, "synced"),
        (bills, plain, "buffered"),
        (reserved, plain, 422),
    ]
    wanted += [
        (bills, b'{"payload":"z","key":"a b"}', 422),
        (SEND, b'{"payload":"z","tag":""}', 422),
    ]
    wanted += [(SEND, plain, "buffered")]

    async def play(way: Way) -> tuple[list[Any], int]:
        for path, body, _ in wanted:  # the head of a refused request is not learned
            await way.ask(post(path, body.replace(b"a b", b"abc")))
        taken = way.taken
        asked = [
            way.ask(post(path, body), connection=number)
            for number, (path, body, _) in enumerate(wanted)
        ]
        bodies = [json.loads(one.partition(b"\r\n\r\n")[2]) for one in await asyncio.gather(*asked)]
        return [
            (one.get("durability") or one["status"], one.get("topic")) for one in bodies
        ], way.taken - taken

    answered, taken = played(Way(tmp_path, is_direct=True), play)

    assert [what for what, _ in answered] == [what for _, _, what in wanted]
    assert [topic for _, topic in answered] == [
        "orders",
        "orders",
        "bills",
        None,
        None,
        None,
        "orders",
    ]
    assert taken == len(wanted) - 1, "all but the empty tag, which is wrong as it stands"


def test_a_transaction_that_was_taken_is_decided_though_others_have_its_place_in_memory_by_then(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(plain_transactions, "_KEPT_BYTES", 2_500)
    body = b'{"producer_group":"shop","messages":[{"topic":"orders","message":{"payload":"x"}}]}'

    async def play(way: Way) -> str:
        async def begin() -> str:
            return str(
                json.loads(
                    (await way.ask(post("/v1/transactions", body))).partition(b"\r\n\r\n")[2]
                )["transaction_id"]
            )

        ids = [await begin() for _ in range(3)]
        plain = way.services.transactions.plain
        kept = plain.take(ids[-1])
        assert kept is not None
        ids += [await begin() for _ in range(4)]
        decided: asyncio.Future[Decided] = asyncio.get_running_loop().create_future()
        plain.decide(
            [kept], TxnState.COMMITTED, done=decided.set_result, failed=decided.set_exception
        )
        await decided
        assert plain.take(ids[0]) is None
        found = await way.services.transactions.get(ids[2])
        return str(found.state)

    assert played(Way(tmp_path, is_direct=True), play) == TxnState.COMMITTED


def test_requests_of_one_turn_that_only_together_take_more_than_a_segment_are_all_done(tmp_path):
    message = f'{{"topic":"orders","message":{{"payload":"{"x" * 12_000}"}}}}'
    begin = f'{{"producer_group":"shop","messages":[{message}]}}'.encode()

    async def play(way: Way) -> list[set[bytes]]:
        async def all_at_once(requests: Iterable[bytes]) -> list[bytes]:
            return await asyncio.gather(
                *(way.ask(request, connection=number) for number, request in enumerate(requests))
            )

        def ids_of(answers: list[bytes]) -> list[str]:
            found = [json.loads(one.partition(b"\r\n\r\n")[2]) for one in answers]
            return [str(one["transaction_id"]) for one in found]

        for _ in range(2):  # the heads are known afterwards
            await way.ask(post(SEND, LARGE))
            (first,) = ids_of(await all_at_once([post("/v1/transactions", begin)]))
            await way.ask(post(f"/v1/transactions/{first}/commit", b""))
        taken = way.taken
        sent = await all_at_once([post(SEND, LARGE)] * MANY)
        begun = await all_at_once([post("/v1/transactions", begin)] * MANY)
        kept = [(await all_at_once([post("/v1/transactions", begin)]))[0] for _ in range(MANY)]
        done = await all_at_once(
            post(f"/v1/transactions/{each}/commit", b"") for each in ids_of(kept)
        )
        assert way.taken - taken == 4 * MANY
        return [{one[9:12] for one in answers} for answers in (sent, begun, done)]

    statuses = played(Way(tmp_path, is_direct=True, segment_bytes=1 << 16), play)

    assert statuses == [{b"201"}, {b"201"}, {b"200"}]


def test_a_begin_that_leaves_no_room_for_its_commit_is_refused(tmp_path):
    async def play(way: Way) -> list[bytes]:
        answers = []
        for byte_count in (2_000, 9_000, 14_000):
            message = f'{{"topic":"orders","message":{{"payload":"{"x" * byte_count}"}}}}'
            begin = f'{{"producer_group":"shop","messages":[{message}]}}'.encode()
            answers.append(await way.ask(post("/v1/transactions", begin)))
        return answers

    begun, *refused = played(Way(tmp_path, is_direct=True, segment_bytes=1 << 14), play)

    assert begun[9:12] == b"201"
    for answer in refused:
        assert answer[9:12] == b"413"
        problem = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert problem["code"] == "message_too_large"
        assert 2_000 < int(problem["context"]["limit_bytes"]) < 9_000


# --------------------------------------------------------------------------------------------------
# an operation that fails


class Connection:
    """Notes what becomes of its request."""

    def __init__(self) -> None:
        self.fate: list[str] = []

    def answer_held(self, answer: bytes) -> None:
        self.fate.append(answer[9:12].decode())

    def read_again(self, data: bytes) -> None:
        self.fate.append(f"read again: {data.decode()}")

    def cut(self) -> None:
        self.fate.append("cut")


class Taken(NamedTuple):
    connection: Connection
    asked: Asked
    data: bytes


def fates(do: Callable[[HotTurn[Taken], list[Taken]], None]) -> tuple[list[list[str]], int]:
    """What becomes of three requests that are done so, and the bytes of bodies that stay
    counted.
    """

    async def run() -> tuple[list[list[str]], int]:
        bodies = BodyBudget(1 << 20)
        store = SimpleNamespace(before_write=asyncio.get_running_loop().call_soon)
        services = SimpleNamespace(store=store)
        parts = HotParts(lambda: services, bodies, Metrics(), list)
        turn = HotTurn[Taken](
            parts,
            "sendMessage",
            lambda _, taken, begun: do(turn, taken),
            tells_pressure=False,
            answer_bytes_of=lambda taken: 100,
        )
        connections = [Connection() for _ in range(3)]
        for connection in connections:
            turn.add(services, Taken(connection, Asked(None, [], "/", 0), b"data"))
        assert (bodies.body_bytes, bodies.answer_bytes) == (12, 300)
        await asyncio.sleep(0)
        assert len(turn) == 0
        return [connection.fate for connection in connections], bodies.used_bytes

    return asyncio.run(run())


def test_where_an_operation_fails_unexpectedly_each_request_is_read_again():
    def do(turn: HotTurn[Taken], taken: list[Taken]) -> None:
        raise KeyError("a defect")

    assert fates(do) == ([["read again: data"]] * 3, 0)


def test_where_requests_together_are_too_large_each_is_read_again():
    def do(turn: HotTurn[Taken], taken: list[Taken]) -> None:
        turn.refuse(SERVICES, taken, MessageTooLarge("of all", limit_bytes=1), 0.0)

    assert fates(do) == ([["read again: data"]] * 3, 0)


def test_where_answers_cannot_be_made_no_client_waits_for_ever():
    def do(turn: HotTurn[Taken], taken: list[Taken]) -> None:
        turn.ending(taken, lambda found: turn.answer(taken, 201, [""] * 3, ["{}", "{}"], 0.0))(None)

    assert fates(do) == ([["201", "cut"], ["201", "cut"], ["cut"]], 0)


def test_requests_are_done_at_the_end_of_their_turn():
    def do(turn: HotTurn[Taken], taken: list[Taken]) -> None:
        turn.answer(taken, 201, [""] * 3, ["{}"] * 3, 0.0)

    assert fates(do) == ([["201"]] * 3, 0)
