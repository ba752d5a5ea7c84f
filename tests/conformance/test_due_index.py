"""The promises of every engine about its index of times (storage/store.py)."""

from storage.message import NEVER_MS, DueEntry, QueueId

ORDERS = QueueId("orders", 0)
EVERYTHING = {"until_ms": 1 << 62, "max_entries": 1_000}


def due(due_ms: int, place: int = 0, revision: int = 1, label: int = 7) -> DueEntry:
    return DueEntry(due_ms, place, revision, label)


async def read(store, after: DueEntry | None = None, **given) -> list[DueEntry]:
    return (await store.read_due(after, **{**EVERYTHING, **given})).entries


async def test_what_is_due_comes_by_its_time_whatever_the_order_in_which_it_was_added(store):
    store.change_due([due(30), due(10, 2), due(20)], [], {ORDERS: 1})
    store.change_due([due(10, 1)], [], {ORDERS: 2})

    assert await read(store) == [due(10, 1), due(10, 2), due(20), due(30)]
    assert await read(store, until_ms=20) == [due(10, 1), due(10, 2)]
    assert await read(store, due(10, 1)) == [due(10, 2), due(20), due(30)]


async def test_a_reader_goes_on_behind_where_he_was_until_nothing_is_left(store):
    store.change_due([due(number // 3, number) for number in range(100)], [], {ORDERS: 1})

    found, after = [], None
    while True:
        page = await store.read_due(after, until_ms=1_000, max_entries=7)
        assert len(page.entries) <= 7
        found += page.entries
        after = page.end
        if after is None:
            break

    assert found == [due(number // 3, number) for number in range(100)]


async def test_what_was_taken_away_is_never_read_and_nothing_else_goes_with_it(store):
    store.change_due([due(10, 1), due(10, 2), due(10, 2, revision=2)], [], {ORDERS: 1})
    store.change_due([due(20, 3)], [due(10, 2), due(20, 3)], {ORDERS: 2})

    assert await read(store) == [due(10, 1), due(10, 2, revision=2)]
    assert [await store.holds_due(due(10, 2)), await store.holds_due(due(10, 1)),
    await store.holds_due(due(9, 1))] == [
        False, True, False,
    ]  # fmt: skip
    assert await store.count_due(until_ms=11) == 2


async def test_only_entries_with_a_wanted_label_are_read(store):
    store.change_due(
        [due(number, number, label=number % 4) for number in range(20)], [], {ORDERS: 1}
    )

    assert [one.due_ms for one in await read(store, labels=range(3, 4))] == [3, 7, 11, 15, 19]
    assert {one.label for one in await read(store, labels=range(1, 1 << 32))} == {1, 2, 3}
    assert [
        one.due_ms for one in await read(store, due(7, 7), labels=range(3, 4), max_entries=2)
    ] == [11, 15]


async def test_what_is_never_due_is_kept_and_counted_apart(store):
    store.change_due([due(5), due(NEVER_MS + 3), due(NEVER_MS + 2)], [], {ORDERS: 1})

    assert await read(store, until_ms=NEVER_MS) == [due(5)]
    assert [one.due_ms - NEVER_MS for one in await read(store, due(NEVER_MS))] == [2, 3]
    assert store.due_counts() == (1, 2)
    store.change_due([], [due(NEVER_MS + 3)], {ORDERS: 2})
    assert store.due_counts() == (1, 1)


async def test_what_it_reflects_is_what_was_said_last_of_each_queue(store):
    other = QueueId("orders", 1)
    assert store.due_positions() == {}

    store.change_due([due(5)], [], {ORDERS: 1, other: 4})
    store.change_due([], [due(5)], {ORDERS: 2})

    assert store.due_positions() == {ORDERS: 2, other: 4}


async def test_what_is_forgotten_is_gone_with_what_it_reflected(store):
    store.change_due([due(5)], [], {ORDERS: 1})

    await store.forget_due()

    assert (await read(store), store.due_positions(), store.due_counts()) == ([], {}, (0, 0))
    store.change_due([due(5)], [], {ORDERS: 1})
    assert await read(store) == [due(5)]
