"""Checks that are sent: who is asked, how often, what an answer does and what none does.

In a simulated world.
"""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import msgspec

from storage.local.options import LocalStoreOptions
from storage.message import QueueId
from storage.store import MessageStore
from tests.support.builders import message
from tests.support.lives import one_life, run_lives
from tests.support.simulation import World
from txn import half_message
from txn.begin import Begin
from txn.check_sender import CheckSender
from txn.checkback_plan import CheckbackPolicy, OnExhausted
from txn.coordinator import TransactionCoordinator
from txn.open_checks import LeasedCheck, check_now
from txn.options import TransactionOptions
from txn.producer import Answered, Failed, Failure, Route
from txn.states import Resolver, TxnEvent, TxnState

ORDERS = QueueId("orders", 0)
SOON = CheckbackPolicy(
    first_after_ms=100, interval_ms=200, max_answers=3, unreachable_limit_ms=86_400_000
)
OPTIONS = LocalStoreOptions(
    segment_bytes=65_536,
    prepare_ahead_bytes=16_384,
    queue_file_entries=20,
    index_slots=64,
    index_file_entries=200,
)
COMMIT, UNKNOWN = Answered(TxnEvent.COMMIT, 1), Answered(TxnEvent.UNKNOWN, 1)
DOWN = Failed(Failure.UNREACHABLE, "status 503", blames_host=True)
WRONG = Failed(Failure.INVALID, "status 404")


class Producers:
    """The world outside: each try is answered by the next of these, the last one again and
    again.
    """

    def __init__(
        self, *outcomes: Answered | Failed, concurrency: int = 4, takes_ms: int = 0
    ) -> None:
        self.outcomes = list(outcomes)
        self.concurrency = concurrency
        self.takes_ms = takes_ms
        self.asked: list[tuple[int, str]] = []  # when, which check
        self.under_way = 0
        self.most_under_way = 0
        self.groups = {"shop": "shop.example"}
        self.meanwhile: Callable[[LeasedCheck], object] | None = None
        self.now_ms: Callable[[], int] = lambda: 0

    def route(self, group: str) -> Route | None:
        return Route(self.groups[group], self.concurrency) if group in self.groups else None

    async def ask(self, group: str, check: LeasedCheck) -> Answered | Failed:
        self.asked.append((self.now_ms(), check.check_id))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.takes_ms / 1000)
            if self.meanwhile is not None:
                await self.meanwhile(check)
            return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        finally:
            self.under_way -= 1

    async def disable(self, group: str, host: str) -> None:
        assert self.groups.pop(group) == host


class House:
    def __init__(
        self,
        world: World,
        store: MessageStore,
        producers: Producers,
        coordinator: TransactionCoordinator,
        random: float,
    ) -> None:
        self.world = world
        self.store = store
        self.producers = producers
        self.coordinator = coordinator
        self.sender = CheckSender(coordinator, producers, world.clock, random=lambda: random)
        producers.now_ms = world.clock.monotonic_ms

    async def begin(self, group: str = "shop", policy: CheckbackPolicy = SOON) -> str:
        number = len(self.coordinator.table)
        request = Begin((message(b"order", queue=ORDERS, message_id=f"m{number}"),), group, policy)
        return (await self.coordinator.begin(request)).transaction.transaction_id

    async def run_for(self, ms: int) -> None:
        """As the tickers do."""
        until_ms = self.world.clock.monotonic_ms() + ms
        while self.world.clock.monotonic_ms() < until_ms:
            await self.coordinator.run_once(self.world.clock.wall_ms())
            await self.sender.run_once()
            await asyncio.sleep(0.01)

    async def look(self, transaction_id: str):
        return await self.coordinator.get(transaction_id)


def in_house(*lives, producers: Producers, random: float = 0.0) -> None:
    """Each life on the disk that the one before it left when it was killed."""

    async def enter(world: World) -> House:
        store = await world.open_store(OPTIONS)
        await store.create_topic("orders", queue_count=1)
        coordinator = TransactionCoordinator(
            store, world.clock, world.identifiers, TransactionOptions()
        )
        await coordinator.start()
        return House(world, store, producers, coordinator, random)

    run_lives(lives, enter)


with_house = one_life(in_house)


def gaps(producers: Producers) -> list[int]:
    """Between the tries, in milliseconds."""
    times = [at for at, _ in producers.asked]
    return [later - earlier for earlier, later in pairwise(times)]


@with_house(producers=Producers(COMMIT))
async def test_a_due_check_is_sent_and_its_answer_decides(house):
    transaction_id = await house.begin()
    await house.run_for(90)
    assert house.producers.asked == []

    await house.run_for(50)

    found = await house.look(transaction_id)
    assert (found.state, found.resolved_by) == (TxnState.COMMITTED, Resolver.CHECK)
    assert [check_id for _, check_id in house.producers.asked] == [f"chk_1_{transaction_id}"]


@with_house(producers=Producers(UNKNOWN))
async def test_unknown_is_counted_and_asked_again_under_a_new_id_until_it_is_held(house):
    transaction_id = await house.begin()

    await house.run_for(5_000)

    found = await house.look(transaction_id)
    assert (found.state, found.answers, found.hold_reason) == (
        TxnState.HELD,
        3,
        "answers_exhausted",
    )
    assert [check_id for _, check_id in house.producers.asked] == [
        f"chk_{number}_{transaction_id}" for number in (1, 2, 3)
    ]
    assert all(200 <= gap <= 230 for gap in gaps(house.producers))


@with_house(
    producers=Producers(UNKNOWN._replace(recheck_after_ms=1000, evidence={"row": "1"}), COMMIT)
)
async def test_the_producer_says_when_it_wants_to_be_asked_again(house):
    await house.begin()

    await house.run_for(1_500)

    (gap,) = gaps(house.producers)
    assert 1_000 <= gap <= 1_030


@with_house(producers=Producers(WRONG))
async def test_what_is_no_answer_is_asked_again_under_the_same_id_after_waits_that_double_and_is_never_counted(
    house,
):
    transaction_id = await house.begin()

    await house.run_for(200_000)

    assert len({check_id for _, check_id in house.producers.asked}) == 1
    expected = [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]
    assert all(
        0 <= gap - wait <= 30 for gap, wait in zip(gaps(house.producers), expected, strict=False)
    )
    found = await house.look(transaction_id)
    assert (found.state, found.answers, found.last_failure) == (
        TxnState.PREPARED,
        0,
        "invalid: status 404",
    )


@with_house(producers=Producers(WRONG), random=0.999)
async def test_chance_takes_a_little_off_each_wait(house):
    await house.begin()

    await house.run_for(1_000)

    assert 180 <= gaps(house.producers)[0] <= 199


@with_house(producers=Producers(DOWN._replace(retry_after_ms=5000), COMMIT))
async def test_an_endpoint_that_asks_for_time_gets_it(house):
    await house.begin()

    await house.run_for(6_000)

    assert 5_000 <= gaps(house.producers)[0] <= 5_030


@with_house(producers=Producers(WRONG, WRONG, UNKNOWN, WRONG, COMMIT))
async def test_after_an_answer_the_waits_begin_anew(house):
    await house.begin()

    await house.run_for(3_000)

    assert [gap // 100 for gap in gaps(house.producers)] == [2, 4, 2, 2]


def test_one_that_nobody_answers_has_a_clock_of_its_own_which_a_restart_does_not_stop():
    limited = msgspec.structs.replace(SOON, unreachable_limit_ms=3_000)
    begun = []

    async def life(house):
        begun.append(await house.begin(policy=limited))
        begun.append(
            await house.begin(
                policy=msgspec.structs.replace(limited, on_exhausted=OnExhausted.ROLLBACK)
            )
        )
        await house.run_for(2_000)
        assert (await house.look(begun[0])).state is TxnState.PREPARED

    async def after(house):
        await house.run_for(1_500)
        held, rolled_back = [await house.look(one) for one in begun]
        assert (held.state, held.hold_reason, held.answers) == (TxnState.HELD, "unreachable", 0)
        assert held.last_failure == "unreachable: status 503"
        assert (rolled_back.state, rolled_back.resolved_by) == (
            TxnState.ROLLED_BACK,
            Resolver.POLICY,
        )
        asked = len(producers.asked)
        await house.run_for(60_000)
        assert len(producers.asked) == asked, "what is held or decided is not asked about"

    producers = Producers(DOWN)
    in_house(life, after, producers=producers)


@with_house(producers=Producers(Failed(Failure.UNREACHABLE, "status 410", is_gone=True), COMMIT))
async def test_an_endpoint_that_is_gone_is_not_asked_again(house):
    transaction_id = await house.begin()

    await house.run_for(60_000)

    assert len(house.producers.asked) == 1
    assert house.producers.groups == {}
    found = await house.look(transaction_id)
    assert (found.state, found.last_failure) == (TxnState.PREPARED, "unreachable: status 410")

    house.producers.groups["shop"] = "elsewhere.example"
    await house.run_for(1_000)
    assert (await house.look(transaction_id)).state is TxnState.COMMITTED


@with_house(producers=Producers(COMMIT))
async def test_the_answer_to_a_check_of_a_decided_transaction_is_dropped(house):
    decided, other = await house.begin(), await house.begin()

    async def decide(check):
        if check.transaction.transaction_id == decided:
            await house.coordinator.rollback(decided)

    house.producers.meanwhile = decide
    await house.run_for(1_000)

    found = await house.look(decided)
    assert (found.state, found.resolved_by) == (TxnState.ROLLED_BACK, Resolver.PRODUCER)
    assert (await house.look(other)).state is TxnState.COMMITTED
    assert len(house.producers.asked) == 2


@with_house(producers=Producers(COMMIT))
async def test_a_transaction_that_is_decided_before_its_check_is_sent_is_not_asked_about(house):
    transaction_id = await house.begin()
    await asyncio.sleep(0.15)
    await house.coordinator.run_once(house.world.clock.wall_ms())  # its check is open
    await house.coordinator.commit(transaction_id)

    await house.run_for(1_000)

    assert house.producers.asked == []


@with_house(producers=Producers(COMMIT, takes_ms=2000))
async def test_a_late_answer_decides_a_transaction_that_is_held_meanwhile(house):
    transaction_id = await house.begin(
        policy=msgspec.structs.replace(SOON, unreachable_limit_ms=500)
    )
    await house.run_for(1_000)
    assert (await house.look(transaction_id)).state is TxnState.HELD

    await house.run_for(1_500)

    found = await house.look(transaction_id)
    assert (found.state, found.resolved_by, found.is_late) == (
        TxnState.COMMITTED,
        Resolver.CHECK,
        True,
    )


@with_house(producers=Producers(COMMIT, concurrency=3, takes_ms=300))
async def test_a_host_gets_no_more_checks_at_once_than_it_may_have_whichever_group_they_are_of(
    house,
):
    house.producers.groups["mail"] = "shop.example"
    begun = [await house.begin(group) for group in ("shop", "mail") * 10]

    await house.run_for(10_000)

    assert house.producers.most_under_way == 3
    assert len(house.producers.asked) == 20
    assert {(await house.look(one)).state for one in begun} == {TxnState.COMMITTED}


@with_house(producers=Producers(COMMIT, concurrency=1, takes_ms=300))
async def test_another_question_gets_the_next_room_at_its_host_although_checks_wait(house):
    begun = [await house.begin() for _ in range(10)]
    await house.run_for(150)

    async def ask() -> Answered:
        return Answered(
            TxnEvent.UNKNOWN, latency_ms=len(house.producers.asked) * 10 + house.producers.under_way
        )

    outcome = await house.sender.ask_beside("shop", ask)

    assert outcome.latency_ms == 10, "one check was under way, and has ended"
    await house.run_for(10_000)
    assert {(await house.look(one)).state for one in begun} == {TxnState.COMMITTED}


@with_house(producers=Producers(COMMIT, concurrency=1, takes_ms=300))
async def test_asked_out_of_turn_a_check_is_one_of_those_that_its_host_may_have_at_once(house):
    begun = [await house.begin() for _ in range(4)]
    await house.run_for(150)
    last = await house.look(begun[-1])

    asking = asyncio.ensure_future(house.sender.ask_now(check_now(last, 0), dry_run=False))
    await house.run_for(2_000)

    assert isinstance(await asking, Answered)
    assert house.producers.most_under_way == 1
    assert last.state is TxnState.COMMITTED
    assert [check_id for _, check_id in house.producers.asked][1] == f"chk_1_{begun[-1]}", (
        "the next room was for who waited"
    )


@with_house(producers=Producers(DOWN))
async def test_a_host_that_is_left_alone_is_not_asked_out_of_turn_either_and_nothing_is_noted(
    house,
):
    begun = [await house.begin() for _ in range(20)]
    await house.run_for(1_000)
    assert house.sender.pause_ms("shop") > 0
    young = await house.look(await house.begin())
    asked = len(house.producers.asked)

    outcome = await house.sender.ask_now(check_now(young, 0), dry_run=False)

    assert isinstance(outcome, Failed)
    assert outcome.why is Failure.UNREACHABLE
    assert len(house.producers.asked) == asked
    assert young.last_failure is None
    assert (await house.look(begun[0])).last_failure is not None


@with_house(producers=Producers(COMMIT, takes_ms=20000))
async def test_a_stop_gives_up_what_is_asked_out_of_turn_and_says_so(house):
    transaction = await house.look(await house.begin())
    asking = asyncio.ensure_future(house.sender.ask_now(check_now(transaction, 0), dry_run=False))
    await asyncio.sleep(0.01)
    assert len(house.producers.asked) == 1
    began = house.world.loop.now

    house.sender.begin_stop()
    outcome = await asking

    assert house.world.loop.now == began
    assert (outcome.why, outcome.detail) == (Failure.UNREACHABLE, "the service stops")
    assert transaction.state is TxnState.PREPARED


@with_house(producers=Producers(COMMIT, takes_ms=3600000))
async def test_a_host_that_hangs_holds_up_no_other(house):
    house.producers.groups["mail"] = "mail.example"
    for _ in range(10):
        await house.begin("shop")
    await house.run_for(500)
    house.producers.takes_ms = 0

    transaction_id = await house.begin("mail")
    await house.run_for(500)

    assert (await house.look(transaction_id)).state is TxnState.COMMITTED
    await house.sender.stop()


@with_house(producers=Producers(DOWN, takes_ms=10))
async def test_a_host_that_is_down_is_left_alone_by_the_checks_of_others_too_and_found_again(house):
    begun = [await house.begin() for _ in range(100)]

    await house.run_for(900)
    assert 10 <= len(house.producers.asked) <= 14, "the circuit is open"

    house.producers.outcomes = [COMMIT]
    await house.run_for(60_000)
    assert {(await house.look(one)).state for one in begun} == {TxnState.COMMITTED}


@with_house(producers=Producers(COMMIT))
async def test_the_checks_of_a_group_that_is_not_asked_are_left_for_those_who_come(house):
    transaction_id = await house.begin("polled")
    await house.run_for(1_000)

    (check,) = await house.coordinator.receive_checks(
        "polled", max_checks=5, lease_ms=1_000, wait_ms=0
    )

    assert (check.transaction.transaction_id, house.producers.asked) == (transaction_id, [])


@with_house(producers=Producers(COMMIT, takes_ms=60000))
async def test_a_check_that_is_under_way_is_nobody_elses(house):
    await house.begin()
    await house.run_for(500)

    assert (
        await house.coordinator.receive_checks("shop", max_checks=5, lease_ms=1_000, wait_ms=0)
        == []
    )
    await house.sender.stop()


def test_a_stop_gives_up_what_is_under_way_and_the_next_start_asks_again_under_the_same_id():
    async def life(house):
        await house.begin()
        await house.run_for(500)
        began_ms = house.world.clock.monotonic_ms()

        await house.sender.stop()
        await house.run_for(1_000)

        assert house.sender.under_way == producers.under_way == 0
        assert house.world.clock.monotonic_ms() - began_ms < 1_100
        assert len(producers.asked) == 1
        producers.takes_ms = 0

    async def after(house):
        await house.run_for(500)
        (first, second) = [check_id for _, check_id in producers.asked]
        assert first == second
        (transaction,) = house.coordinator.table
        assert transaction.state is TxnState.COMMITTED

    producers = Producers(COMMIT, takes_ms=3_600_000)
    in_house(life, after, producers=producers)


@with_house(producers=Producers(COMMIT))
async def test_a_bug_in_one_try_ends_neither_the_loop_nor_the_check(house):
    transaction_id = await house.begin()

    async def stumble(check):
        house.producers.meanwhile = None
        raise ValueError("a bug")

    house.producers.meanwhile = stumble
    await house.run_for(1_000)

    assert (await house.look(transaction_id)).state is TxnState.COMMITTED
    assert len(house.producers.asked) == 2


def test_a_transaction_whose_checks_cannot_be_ended_is_set_aside_and_keeps_no_other():
    """Its id takes so much of a record's properties that no mark about it fits: only another
    program writes such a half.
    """
    producers = Producers(UNKNOWN)
    policy = msgspec.structs.replace(SOON, max_answers=1)

    async def write_poison(house):
        riddle = message(b"order", queue=ORDERS, message_id="riddle")
        facts = half_message.Facts(message_count=1, policy=policy)
        await house.store.append(
            half_message.wrap_halves(
                [riddle], transaction_id="x" * 20_000, producer_group="shop", facts=facts
            )
        )

    async def life(house):
        poison = next(iter(house.coordinator.table))
        poison.answers = 1  # nothing about its answers can be written either
        transaction_id = await house.begin(policy=policy)

        await house.run_for(600)

        assert (await house.look(transaction_id)).state is TxnState.HELD
        ((aside, reason),) = house.coordinator.parked().items()
        assert aside == poison.transaction_id
        assert reason
        assert poison.state is TxnState.PREPARED

    in_house(write_poison, life, producers=producers)
