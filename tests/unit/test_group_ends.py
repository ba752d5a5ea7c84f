"""A request of a group that is under way while the group is deleted: it comes before the end of the
group or is refused, and nothing of it is left for a group of the name that is made afterwards.

Each is tried with the deletion so many turns of the event loop later, or earlier.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from delivery.groups import GroupRules, Start
from delivery.receive.receive import LeasedMessage, Request
from delivery.settle.reject import Rejection
from storage.errors import MessagingError, UnknownGroup
from tests.support.delivery import GROUP, ORDERS, House, in_house, rules
from tests.support.http import reached
from tests.support.two_ways import Way

TURNS = range(-30, 31)
PLAIN = Request(max_messages=10, max_bytes=1 << 20, lease_ms=60_000)

Act = Callable[[House, GroupRules, list[LeasedMessage]], Awaitable[object]]


async def receive(house: House, given: GroupRules, _: list[LeasedMessage]) -> object:
    return await house.delivery.receive(GROUP, given, PLAIN)


async def receive_by_name(house: House, given: GroupRules, _: list[LeasedMessage]) -> object:
    return await house.delivery.receive(GROUP, given, PLAIN._replace(attempt_id="work"))


async def wait(house: House, given: GroupRules, _: list[LeasedMessage]) -> object:
    await house.delivery.receive(GROUP, given, PLAIN)
    return await house.delivery.begin_wait(GROUP, given, PLAIN, lambda: None)


async def set_positions(house: House, _: GroupRules, __: list[LeasedMessage]) -> object:
    return await house.delivery.set_positions(GROUP, {ORDERS: 1})


async def reset(house: House, _: GroupRules, __: list[LeasedMessage]) -> object:
    return await house.delivery.reset(GROUP, {ORDERS: 1})


async def ack(house: House, _: GroupRules, leased: list[LeasedMessage]) -> object:
    return await house.delivery.ack(GROUP, [one.handle for one in leased])


async def extend(house: House, _: GroupRules, leased: list[LeasedMessage]) -> object:
    return await house.delivery.extend(GROUP, [(one.handle, 90_000) for one in leased])


async def nack(house: House, given: GroupRules, leased: list[LeasedMessage]) -> object:
    refused = [Rejection(one.handle, 1_000, None) for one in leased]
    return await house.delivery.nack(GROUP, given, refused)


async def give_up(house: House, given: GroupRules, leased: list[LeasedMessage]) -> object:
    refused = [Rejection(one.handle, None, None) for one in leased]
    return await house.delivery.dead_letter(GROUP, given, refused)


async def sweep(house: House, _: GroupRules, __: list[LeasedMessage]) -> object:
    return await house.delivery.run_once()


async def after(turns: int, act: Awaitable[object]) -> None:
    """Do it some turns of the loop later; it may be refused, as its group is gone."""
    for _ in range(turns):
        await asyncio.sleep(0)
    try:
        await act
    except UnknownGroup:
        return


async def delete(house: House) -> None:
    house.rules = None
    await house.delivery.delete(GROUP)


async def check_is_new(house: House) -> None:
    """It has read nothing of what was sent before it was made."""
    assert await house.position() == 4
    assert await house.receive() == []
    assert house.delivery.dead_letters.count_kept(GROUP) == 0
    lag, waiting = await house.delivery.lag(GROUP, rules())
    assert (waiting, sum(one.leased + one.waiting + one.ready for one in lag)) == (0, 0)


@pytest.mark.parametrize(
    "act",
    [receive, receive_by_name, wait, set_positions, reset, ack, extend, nack, give_up, sweep],
)
def test_a_request_that_meets_the_deletion_of_its_group_leaves_nothing_for_the_next_one(act: Act):
    for turns in TURNS:

        async def first_life(house: House, turns: int = turns) -> None:
            given = house.rules
            assert given is not None
            await house.send("a", "b", "c", "d")
            leased = await house.receive(2, lease_ms=1_000)
            if act is sweep:
                await house.sleep(1_100)
            await asyncio.gather(
                after(turns, act(house, given, leased)), after(-turns, delete(house))
            )
            house.rules = rules(start=Start.LATEST)
            await house.delivery.begin(GROUP, house.rules)
            await check_is_new(house)
            await house.pass_time(2_000)
            await check_is_new(house)

        async def second_life(house: House) -> None:
            await check_is_new(house)

        try:
            in_house(first_life, second_life, given=rules(max_attempts=1 if act is sweep else 5))
        except (AssertionError, MessagingError) as error:
            error.add_note(f"{act.__name__}, {turns} turns later than the deletion")
            raise


@pytest.mark.parametrize("act", [receive, receive_by_name, wait, set_positions, reset])
def test_a_request_that_waited_for_its_turn_while_its_group_was_deleted_is_refused(act: Act):
    async def life(house: House) -> None:
        given = house.rules
        assert given is not None
        await house.send("a", "b", "c", "d")
        async with house.delivery._receiver.claim_lock(GROUP):
            deleting = asyncio.create_task(delete(house))
            await asyncio.sleep(0)
            waiting = asyncio.create_task(asyncio.wait_for(act(house, given, []), 5))
            for _ in range(5):
                await asyncio.sleep(0)
        await deleting
        with pytest.raises(UnknownGroup):
            await waiting

    in_house(life)


async def ask(way: Way, method: str, path: str, body: object = None, connection: int = 0) -> Any:
    """(status, JSON of the answer)."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} /v1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(data)}\r\n\r\n".encode() + data
    answer = await way.ask(request, connection=connection)
    begin, _, found = answer.partition(b"\r\n\r\n")
    return int(begin.split()[1]), json.loads(found) if found else None


async def with_deletion_behind(
    way: Way,
    waiting: Callable[[], object],
    let_go: Callable[[], None],
    method: str,
    path: str,
    body: object,
) -> Any:
    """The answer to a request that waits for a turn until the deletion of the group has begun.

    `waiting`: who waits for the turn, which `let_go` gives up.
    """
    asked = asyncio.create_task(ask(way, method, path, body, 1))
    await reached(waiting, "the request waits")
    deleting = asyncio.create_task(ask(way, "DELETE", f"groups/{GROUP}", None, 2))
    await reached(
        lambda: way.services.consumer_groups.find(GROUP) is None, "the deletion has begun"
    )
    let_go()
    assert (await deleting)[0] == 204
    return await asked


async def make_group(way: Way) -> None:
    for method, path, body in (
        ("POST", "topics", {"topic": "orders", "queues": 1}),
        ("POST", "topics/orders/messages", {"payload": "a"}),
        ("PUT", f"groups/{GROUP}", {"topics": [{"topic": "orders"}]}),
    ):
        assert (await ask(way, method, path, body))[0] == 201


async def test_offsets_are_committed_in_a_new_group_where_the_one_before_is_deleted_meanwhile(
    tmp_path,
):
    async with Way(tmp_path, is_direct=True) as way:
        await make_group(way)
        body = {"offsets": [{"topic": "orders", "queue_id": 0, "offset": 1}]}
        turn = way.services.delivery._receiver.claim_lock(GROUP)
        await turn.acquire()

        status, _ = await with_deletion_behind(
            way, lambda: turn._waiters, turn.release, "PUT", f"groups/{GROUP}/offsets", body
        )

        assert status == 200
        found, group = await ask(way, "GET", f"groups/{GROUP}")
        assert (found, group["topics"]) == (200, [])
        _, offsets = await ask(way, "GET", f"groups/{GROUP}/offsets")
        assert [one["offset"] for one in offsets["items"]] == [1]


async def test_a_member_joins_a_new_group_where_the_one_before_is_deleted_meanwhile(tmp_path):
    async with Way(tmp_path, is_direct=True) as way:
        await make_group(way)
        body = {"client_id": "a", "topics": [{"topic": "orders"}]}

        turns = way.services.members._locks
        assert turns.try_acquire(GROUP)

        status, member = await with_deletion_behind(
            way,
            lambda: turns._waiting[GROUP],
            lambda: turns.release(GROUP),
            "POST",
            f"groups/{GROUP}/members",
            body,
        )

        assert status == 201
        assert [one["queue_id"] for one in member["assignment"]] == [0]
        _, members = await ask(way, "GET", f"groups/{GROUP}/members")
        assert [one["member_id"] for one in members["items"]] == [member["member_id"]]
