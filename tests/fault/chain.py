"""Lives of one store, each ended by a power cut, a kill or an orderly close, and after each the
question: is it all true?

A chain is made from one seed: its options, what its actors do and when, at which disk operation the
power goes, which sectors survive. What the service answered is remembered (`Memory`); after each
end the store is opened again, everything in it is read, and every promise that was given is asked
(docs/guarantees.md, G1 to G7, G10, G11, G15).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from scheduler.schedule_service import ScheduleService
from storage.errors import TransactionConflict
from storage.files.simulated import SimulatedDisk
from storage.formats.names import file_name
from storage.local.local_store import LocalMessageStore
from storage.local.options import AppendMode, FlushPolicy, LocalStoreOptions
from storage.message import Appended, Durability, Message, QueueId, StoredMessage
from tests.fault import delayed
from tests.fault.delayed import Delayed
from tests.support.check_pass import transactions_by_check_pass
from tests.support.simulation import ROOT, End, World
from txn.begin import Begin
from txn.checkback_plan import CheckbackPolicy
from txn.coordinator import TransactionCoordinator
from txn.options import TransactionOptions
from txn.states import TxnEvent, TxnState
from txn.transaction import Transaction

TOPICS = {"orders": 2, "emails": 1}
QUEUES = [QueueId(topic, number) for topic, count in TOPICS.items() for number in range(count)]
NEVER = CheckbackPolicy(first_after_ms=10_000_000)
SOON = CheckbackPolicy(first_after_ms=10, interval_ms=10, max_answers=2)


@dataclass
class Sent:
    """One append call of a client: its messages, and what it was told."""

    messages: list[Message]
    places: list[Appended] | None = None  # None: never answered


@dataclass
class Txn:
    """One transaction: what was asked for and what was answered."""

    messages: list[Message]
    transaction_id: str | None = None
    key: str | None = None
    begun: bool = False
    tried: set[TxnState] = field(default_factory=set)
    decided: TxnState | None = None  # as answered, or as seen after a start
    answered_unknown: int = 0  # at least so many checks are known to have been answered


def _nothing() -> None:
    """The memory of a simulation outlives its worlds by itself."""


@dataclass
class Memory:
    """What the outside world knows; it outlives every crash."""

    policy: FlushPolicy
    delays: bool = True  # are messages delayed, too? They make a chain take nearly twice as long
    sent: list[Sent] = field(default_factory=list)
    txns: list[Txn] = field(default_factory=list)
    delayed: list[Delayed] = field(default_factory=list)
    # acknowledged, and tried since
    offsets: dict[QueueId, tuple[int, set[int]]] = field(default_factory=dict)
    served: dict[tuple[QueueId, int], tuple[str, bytes]] = field(default_factory=dict)
    # ids of messages that a start did not have any more
    gone: set[str] = field(default_factory=set)
    # ids of messages that a start had: it has made them durable
    kept: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    serial: int = 0
    # called around every operation: whoever keeps the memory elsewhere does it here
    note: Callable[[], None] = _nothing

    def expect(self, holds: bool, text: str) -> None:
        if not holds:
            self.problems.append(text)


@dataclass
class Outcome:
    """What a chain did."""

    cuts: int = 0
    kills: int = 0
    closes: int = 0
    messages: int = 0
    transactions: int = 0
    problems: list[str] = field(default_factory=list)


def run_chain(seed: int, lives: int) -> Outcome:
    """So many lives from one seed."""
    randomness = Random(seed)
    policy = randomness.choice(
        [FlushPolicy.BEFORE_ACK, FlushPolicy.BEFORE_ACK, FlushPolicy.INTERVAL]
    )
    memory = Memory(policy, delays=seed % 2 == 0)
    append = AppendMode.POOL if seed % 3 == 0 else AppendMode.FILE
    options = _options(randomness, memory.policy, append)
    disk = SimulatedDisk()
    outcome = Outcome()
    wall_ms = 1_800_000_000_000
    for life in range(lives):
        world = World(disk, seed * 1_000 + life, wall_ms=wall_ms)
        end = randomness.choices([End.CUT, End.KILL, End.CLOSE], [7, 2, 1])[0]
        if end is not End.CLOSE:
            disk.cut_after = disk.operations + randomness.randrange(1, 220)
        ended = _run(world, live(world, options, memory, closes=end is End.CLOSE), memory)
        wall_ms = world.clock.wall_ms() + 1
        world.end()
        if ended and end is not End.CLOSE:
            end = End.KILL  # the actors were done before the power went
        disk = disk.after_power_cut(randomness) if end is End.CUT else disk.after_kill()
        outcome.cuts += end is End.CUT
        outcome.kills += end is End.KILL
        outcome.closes += end is End.CLOSE
        world = World(disk, seed * 1_000 + life + 500, wall_ms=wall_ms)
        _run(world, verify(world, options, memory, end), memory)
        wall_ms = world.clock.wall_ms() + 1
        world.end()
        disk = disk.after_kill()
        if memory.problems:
            outcome.problems = [
                f"seed {seed}, life {life}, after a {end.value}: {text}" for text in memory.problems
            ]
            break
    outcome.messages = sum(len(sent.messages) for sent in memory.sent)
    outcome.transactions = len(memory.txns)
    return outcome


def _run(world: World, main: Coroutine[Any, Any, None], memory: Memory) -> bool:
    """A life that ends in an error is a broken promise like any other."""
    try:
        return world.run(main)
    except Exception as error:
        memory.problems.append(f"{type(error).__name__}: {error}")
        return True


def _options(
    randomness: Random, policy: FlushPolicy, append: AppendMode = AppendMode.FILE
) -> LocalStoreOptions:
    return LocalStoreOptions(
        index_slots=16,
        index_file_entries=40,
        segment_bytes=randomness.choice([16_384, 20_480, 32_768]),
        queue_file_entries=randomness.choice([7, 16, 50]),
        append=append,
        pool_buffers=3,
        pool_buffer_bytes=4_096,
        commit_interval_ms=10,
        commit_thorough_interval_ms=10,
        flush=policy,
        flush_interval_ms=20,
        flush_least_pages=1,
        flush_thorough_interval_ms=100,
        prepare_ahead_bytes=randomness.choice([4_096, 16_384]),
        queue_flush_interval_ms=randomness.choice([5, 20]),
        snapshot_interval_ms=randomness.choice([10, 60]),
        snapshot_log_bytes=randomness.choice([2_048, 65_536]),
    )


# --------------------------------------------------------------------------------------------------
# one life


async def live(
    world: World,
    options: LocalStoreOptions,
    memory: Memory,
    *,
    closes: bool,
    rounds: int | None = None,
    pause: float = 0.01,
) -> None:
    """Actors send, begin, decide, read and commit offsets at the same time; each so many rounds, or
    a random number.

    `pause`: how long an actor rests at most between two rounds, in seconds.
    """
    store, coordinator, schedules = await _open(world, options, memory)
    randomness = world.randomness
    actors: list[Callable[[], Awaitable[None]]] = [
        lambda: _send(world, store, memory),
        lambda: _send(world, store, memory),
        lambda: _transact(world, coordinator, memory),
        lambda: _transact(world, coordinator, memory),
        lambda: _read(world, store, memory),
        lambda: _commit_offset(world, store, memory),
        lambda: _keep(coordinator),
    ]
    if memory.delays:
        actors += [
            lambda: delayed.put_off(
                world, store, _message(world, memory), memory.delayed, memory.note
            ),
            lambda: delayed.change(world, schedules, memory.delayed, memory.note),
            lambda: delayed.sweep(world, schedules),
        ]

    async def act(actor: Callable[[], Awaitable[None]]) -> None:
        for _ in range(randomness.randrange(1, 8) if rounds is None else rounds):
            await asyncio.sleep(randomness.random() * pause)
            await actor()
            memory.note()

    await asyncio.gather(*[act(actor) for actor in actors])
    if closes:
        await coordinator.save_snapshot()
        await store.aclose()


async def _open(
    world: World, options: LocalStoreOptions, memory: Memory
) -> tuple[LocalMessageStore, TransactionCoordinator, ScheduleService]:
    store = await world.open_store(options)
    # at once: in a moment the preparer writes zeros there itself
    _expect_zeros_behind(world.disk, store, options, memory)
    for topic, count in TOPICS.items():
        await store.create_topic(topic, queue_count=count)
    coordinator = TransactionCoordinator(
        store, world.clock, world.identifiers, TransactionOptions()
    )
    await coordinator.start()
    return store, coordinator, await delayed.open_schedules(world, store)


def _message(world: World, memory: Memory, **fields: object) -> Message:
    memory.serial += 1
    randomness = world.randomness
    body = f"{memory.serial}:".encode() + randomness.randbytes(
        randomness.choice([0, 5, 40, 300, 900])
    )
    return Message(
        queue=randomness.choice(QUEUES),
        message_id=f"msg_{memory.serial}",
        body=body,
        born_at_ms=world.clock.wall_ms(),
        key=randomness.choice([None, "key"]),
        tag=randomness.choice([None, "tag", "other"]),
        properties=randomness.choice([{}, {"a": "b", "empty": ""}]),
    )


async def _send(world: World, store: LocalMessageStore, memory: Memory) -> None:
    messages = [_message(world, memory) for _ in range(world.randomness.choice([1, 1, 2, 5]))]
    sent = Sent(messages)
    memory.sent.append(sent)
    memory.note()
    durability = world.randomness.choice([None, None, Durability.SYNCED, Durability.BUFFERED])
    sent.places = await store.append(messages, durability=durability)


async def _transact(world: World, coordinator: TransactionCoordinator, memory: Memory) -> None:
    randomness = world.randomness
    undecided = [txn for txn in memory.txns if txn.begun and txn.decided is None]
    if undecided and randomness.random() < 0.4:
        await _decide(world, coordinator, randomness.choice(undecided), memory)
        return
    messages = [_message(world, memory) for _ in range(randomness.choice([1, 2, 3]))]
    txn = Txn(messages, key=randomness.choice([None, f"key-{memory.serial}"]))
    memory.txns.append(txn)
    memory.note()
    await _begin(coordinator, txn, randomness.choice([NEVER, SOON]))
    memory.note()
    if randomness.random() < 0.6:
        await _decide(world, coordinator, txn, memory)


async def _begin(coordinator: TransactionCoordinator, txn: Txn, policy: CheckbackPolicy) -> bool:
    outcome = await coordinator.begin(
        Begin(
            txn.messages,
            "shop",
            policy,
            idempotency_key=txn.key,
            fingerprint="print" if txn.key else None,
        )
    )
    txn.transaction_id = outcome.transaction.transaction_id
    txn.begun = True
    return outcome.replayed


async def _decide(
    world: World, coordinator: TransactionCoordinator, txn: Txn, memory: Memory
) -> None:
    assert txn.transaction_id is not None
    choice = world.randomness.random()
    if choice < 0.25:
        await _answer_checks(coordinator, txn)
        return
    state = TxnState.COMMITTED if choice < 0.7 else TxnState.ROLLED_BACK
    txn.tried.add(state)
    memory.note()
    try:
        if state is TxnState.COMMITTED:
            await coordinator.commit(txn.transaction_id)
        else:
            await coordinator.rollback(txn.transaction_id)
    except TransactionConflict as conflict:
        txn.decided = TxnState(conflict.state)
    else:
        txn.decided = state


async def _answer_checks(coordinator: TransactionCoordinator, txn: Txn) -> None:
    """Take the checks of the moment; the one about this transaction is answered that nobody
    knows.
    """
    for check in await coordinator.receive_checks("shop", max_checks=100, lease_ms=100, wait_ms=0):
        if check.transaction.transaction_id == txn.transaction_id:
            try:
                answered = await coordinator.answer_check("shop", check.check_id, TxnEvent.UNKNOWN)
            except TransactionConflict as conflict:
                txn.decided = TxnState(conflict.state)
                return
            txn.answered_unknown = max(txn.answered_unknown, answered.checks_answered)


async def _read(world: World, store: LocalMessageStore, memory: Memory) -> None:
    queue = world.randomness.choice(QUEUES)
    bounds = await store.offsets(queue)
    if bounds.end > bounds.first:
        at = world.randomness.randrange(bounds.first, bounds.end)
        for message in await store.read(queue, at, max_messages=5, max_bytes=2_000):
            _note_served(memory, message)


def _note_served(memory: Memory, message: StoredMessage) -> None:
    place, what = (message.queue, message.queue_offset), (message.message_id, message.body)
    known = memory.served.setdefault(place, what)
    memory.expect(known == what, f"{place} was served as {known[0]} and then as {what[0]}")


async def _commit_offset(world: World, store: LocalMessageStore, memory: Memory) -> None:
    queue = world.randomness.choice(QUEUES)
    offset = world.randomness.randrange((await store.offsets(queue)).end + 1)
    acknowledged, tried = memory.offsets.get(queue, (-1, set()))
    memory.offsets[queue] = (acknowledged, tried | {offset})
    memory.note()
    await store.commit_offset("group", queue, offset)
    memory.offsets[queue] = (offset, set())


async def _keep(coordinator: TransactionCoordinator) -> None:
    await coordinator.save_snapshot()


# --------------------------------------------------------------------------------------------------
# is it all true?


async def verify(world: World, options: LocalStoreOptions, memory: Memory, end: End) -> None:
    """Open the store again, read everything, and ask every promise."""
    store, coordinator, schedules = await _open(world, options, memory)
    found: dict[str, StoredMessage] = {}
    for queue in QUEUES:
        await _read_queue(store, queue, memory, found)
    survives = end is not End.CUT  # a killed or closed process loses nothing that was ever answered
    newest = max((message.log_offset or 0 for message in found.values()), default=-1)
    for sent in memory.sent:
        _expect_sent(sent, memory, found, survives=survives, newest=newest)
    for txn in memory.txns:
        await _expect_txn(coordinator, txn, memory, found, survives=survives)
    await _expect_check_pass_agrees(store, coordinator, memory)
    known = {message.message_id: message.body for sent in memory.sent for message in sent.messages}
    known |= {message.message_id: message.body for txn in memory.txns for message in txn.messages}
    known |= {one.message.message_id: one.message.body for one in memory.delayed}
    for message in found.values():
        memory.expect(
            known.get(message.message_id) == message.body, f"{message.message_id} was never sent so"
        )
        memory.expect(
            message.message_id not in memory.gone, f"{message.message_id} was gone, and is back"
        )
    for message_id in memory.kept - found.keys():
        memory.expect(False, f"{message_id} was there after an earlier start, and is lost")
    memory.kept |= found.keys()
    memory.gone |= known.keys() - found.keys() - _still_open(memory)
    await _expect_served(memory, found, survives=survives)
    for queue, (acknowledged, tried) in memory.offsets.items():
        kept = await store.committed_offset("group", queue)
        allowed = {acknowledged, *tried}
        memory.expect(
            (-1 if kept is None else kept) in allowed,
            f"committed offset of {queue} is {kept}, not in {allowed}",
        )
        memory.offsets[queue] = (-1 if kept is None else kept, set())
    if memory.delays:
        await delayed.sweep(world, schedules)
        found = {}
        for queue in QUEUES:
            await _read_queue(store, queue, memory, found)
        memory.problems += await delayed.expect_delayed(
            schedules, memory.delayed, found, survives=survives
        )
    await _expect_begin_is_repeatable(world, coordinator, memory)


def _still_open(memory: Memory) -> set[str]:
    """Messages of transactions may still come, and those that wait."""
    undecided = {
        message.message_id for txn in memory.txns if txn.decided is None for message in txn.messages
    }
    return undecided | {one.message.message_id for one in memory.delayed}


async def _read_queue(
    store: LocalMessageStore, queue: QueueId, memory: Memory, found: dict[str, StoredMessage]
) -> None:
    at = 0
    while messages := await store.read(queue, at, max_messages=7, max_bytes=3_000):
        for message in messages:
            memory.expect(
                message.queue == queue and message.queue_offset == at,
                f"{queue} has {message.queue_offset} at {at}",
            )
            memory.expect(message.message_id not in found, f"{message.message_id} is there twice")
            found[message.message_id] = message
            at += 1


def _expect_zeros_behind(
    disk: SimulatedDisk, store: LocalMessageStore, options: LocalStoreOptions, memory: Memory
) -> None:
    """What a crash left behind the end of the log has been wiped, and the wipe is on disk."""
    end = store.status().written_end
    base = end - end % options.segment_bytes
    path = ROOT / "commitlog" / file_name(base)
    if disk.exists(path):
        raw = disk.on_disk(path)[end - base :]
        memory.expect(
            not any(raw), f"{sum(map(bool, raw))} bytes are left behind the end of the log at {end}"
        )


def _expect_sent(
    sent: Sent, memory: Memory, found: dict[str, StoredMessage], *, survives: bool, newest: int
) -> None:
    there = [message.message_id in found for message in sent.messages]
    ids = [message.message_id for message in sent.messages]
    memory.expect(
        all(there) or not any(there),
        f"a part of one append is there: {dict(zip(ids, there, strict=True))}",
    )
    if sent.places is None:
        return
    first = sent.places[0]
    if all(there):
        for place, message_id in zip(sent.places, ids, strict=True):
            at = (found[message_id].queue, found[message_id].queue_offset)
            memory.expect(
                at == (place.queue, place.queue_offset),
                f"{message_id} was said to be at {place}, it is at {at}",
            )
        return
    if ids[0] in memory.gone:
        return  # its loss was allowed, and has been judged, after an earlier cut
    memory.expect(
        not survives, f"{ids} were acknowledged and are lost though the page cache was not"
    )
    memory.expect(not first.durable, f"{ids} were acknowledged as synced and are lost")
    memory.expect(
        newest < (first.log_offset or 0), f"{ids} are lost, and a later message of the log is there"
    )


async def _expect_txn(
    coordinator: TransactionCoordinator,
    txn: Txn,
    memory: Memory,
    found: dict[str, StoredMessage],
    *,
    survives: bool,
) -> None:
    ids = [message.message_id for message in txn.messages]
    there = [message_id in found for message_id in ids]
    memory.expect(
        all(there) or not any(there), f"a part of transaction {txn.transaction_id} is there"
    )
    known = None if txn.transaction_id is None else coordinator.table.get(txn.transaction_id)
    if known is None:
        memory.expect(
            txn.decided is None, f"{txn.transaction_id} was {txn.decided} and is not known any more"
        )
        may_be_lost = not txn.begun or (not survives and memory.policy is FlushPolicy.INTERVAL)
        memory.expect(
            may_be_lost or ids[0] in memory.gone,
            f"{txn.transaction_id} was begun and is not known any more",
        )
        memory.expect(
            not any(there), f"messages of {ids} are there, their transaction is not known"
        )
        txn.begun = False
        return
    memory.expect(
        known.checks_answered >= txn.answered_unknown, f"{txn.transaction_id} forgot answers"
    )
    if txn.decided is not None:
        memory.expect(
            known.state is txn.decided,
            f"{txn.transaction_id} was {txn.decided}, it is {known.state}",
        )
    else:
        allowed = {TxnState.PREPARED, TxnState.HELD} | txn.tried
        memory.expect(
            known.state in allowed,
            f"{txn.transaction_id} is {known.state}, only {txn.tried} was asked for",
        )
    committed = known.state is TxnState.COMMITTED
    memory.expect(
        all(there) == committed or not there,
        f"{txn.transaction_id} is {known.state}, its messages: {there}",
    )
    if committed:
        await _expect_finals(coordinator, known, memory, found)
    if known.state.is_decided:
        txn.decided = known.state  # whoever asks now is told so, and may rely on it


async def _expect_check_pass_agrees(
    store: LocalMessageStore, coordinator: TransactionCoordinator, memory: Memory
) -> None:
    """What a snapshot and a replay gave is what RocketMQ's rules find in the two topics alone."""
    table = {
        transaction.transaction_id: transaction.state.is_decided
        for transaction in coordinator.table
    }
    found = {key: op is not None for key, op in (await transactions_by_check_pass(store)).items()}
    differ = {
        key: (table.get(key), found.get(key))
        for key in table.keys() | found.keys()
        if table.get(key) != found.get(key)
    }
    memory.expect(not differ, f"decided by the table, by the check pass: {differ}")


async def _expect_finals(
    coordinator: TransactionCoordinator,
    known: Transaction,
    memory: Memory,
    found: dict[str, StoredMessage],
) -> None:
    located = await coordinator.get(known.transaction_id)
    for message in located.messages:
        final = found.get(message.message_id)
        if final is not None:
            memory.expect(
                message.final_offset == final.queue_offset,
                f"{message.message_id} is said to be elsewhere",
            )


async def _expect_served(
    memory: Memory, found: dict[str, StoredMessage], *, survives: bool
) -> None:
    """What was once read at an offset is there for ever; a cut may only take what was never
    promised to survive one.
    """
    at = {
        (message.queue, message.queue_offset): (message.message_id, message.body)
        for message in found.values()
    }
    for place, what in list(memory.served.items()):
        if at.get(place) == what:
            continue
        is_allowed = not survives and memory.policy is FlushPolicy.INTERVAL
        memory.expect(
            is_allowed,
            f"{what[0]} was served at {place}, now there is {at.get(place, ('nothing',))[0]}",
        )
        del memory.served[place]


async def _expect_begin_is_repeatable(
    world: World, coordinator: TransactionCoordinator, memory: Memory
) -> None:
    """The key of a begin that was never answered: it finds the transaction, or it is free."""
    for txn in memory.txns:
        if txn.key is None or txn.begun or world.randomness.random() < 0.7:
            continue
        before = coordinator.table.by_idempotency_key(txn.key)
        replayed = await _begin(coordinator, txn, NEVER)
        memory.expect(
            replayed == (before is not None),
            f"the begin with key {txn.key} was answered as replayed={replayed}",
        )
        if replayed:
            assert before is not None
            txn.messages = [
                message for message in txn.messages if message.message_id in _ids(before)
            ]
            txn.decided = before.state if before.state.is_decided else None
        else:
            memory.gone -= {message.message_id for message in txn.messages}


def _ids(transaction: Transaction) -> set[str]:
    return {message.message_id for message in transaction.messages}
