"""The leases of a group, listed by place, a piece at a time."""

from delivery.lease_list import Lease, Place
from delivery.leases.queue_slots import CHUNK
from storage.errors import CorruptRecord
from storage.message import QueueId
from tests.support.delivery import GROUP, ORDERS, House, rules, with_house

SECOND = QueueId("orders", 1)


async def listed(house: House, *, page: int = 1_000) -> list[Lease]:
    """All of them, by so many."""
    found: list[Lease] = []
    while piece := await house.delivery.leases(
        GROUP, after=found[-1].place if found else None, count=page
    ):
        found += piece
    return found


def names(found: list[Lease]) -> list[str]:
    return [one.message.message_id for one in found if one.message is not None]


@with_house(queues=2)
async def test_leases_are_listed_by_their_place_and_each_once_however_small_the_pages(house):
    await house.send("a", "b", "c")
    await house.send("d", "e", queue=SECOND)
    lent = await house.receive()

    for page in (1, 2, 5, 1_000):
        assert names(await listed(house, page=page)) == ["a", "b", "c", "d", "e"]
    assert {one.expires_at_ms for one in await listed(house)} == {one.expires_at_ms for one in lent}


@with_house()
async def test_what_is_settled_waits_or_has_ended_is_no_lease(house):
    await house.send("acked", "extended", "refused", "ended")
    lent = await house.receive()
    await house.ack(lent[0])
    await house.extend(lent[1], 60_000)
    await house.nack(lent[2], delay_ms=60_000)
    await house.sleep(1_001)

    assert names(await listed(house)) == ["extended"]


@with_house()
async def test_a_retry_that_is_lent_is_listed_in_the_place_of_its_first_delivery(house):
    await house.send("a")
    await house.nack(*await house.receive(), delay_ms=100)
    await house.pass_time(200)
    await house.receive()

    (one,) = await listed(house)
    assert (one.message.queue, one.message.queue_offset, one.attempt) == (ORDERS, 0, 2)
    assert one.place == Place(f"%RETRY%{GROUP}", 0, 0)


@with_house(given=rules(max_attempts=5))
async def test_a_few_leases_among_many_messages_are_found(house):
    await house.send(*[f"m{number}" for number in range(3 * CHUNK)])
    lent = await house.receive(3 * CHUNK, lease_ms=60_000)
    kept = [lent[5], lent[CHUNK], lent[-1]]
    await house.nack(*[one for one in lent if one not in kept], delay_ms=0)

    assert names(await listed(house, page=2)) == [one.message.message_id for one in kept]


@with_house()
async def test_a_message_that_cannot_be_read_is_listed_by_its_place(house):
    await house.send("a")
    await house.receive()

    async def damaged(queue, offset, **options):
        raise CorruptRecord("00000000000000000000", 0, "damaged")

    house.store.read = damaged

    assert [(one.place, one.message) for one in await listed(house)] == [
        (Place("orders", 0, 0), None)
    ]
