"""The outbox: rows of one local transaction are published together, once, whatever stops it."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec import UNSET

from escrowmq_client import Client, ClientClosed, MessageInput, Unreachable, outbox
from escrowmq_client.models.transactions import TransactionMessageInput
from escrowmq_client.outbox import Outbox, outbox_table
from escrowmq_client.publisher import Publisher

_numbers = count(1)


class Shop:
    """A program with an outbox in its database."""

    def __init__(
        self,
        database,
        client,
        *,
        stamped: bool = False,
        table: str = "outbox",
        group: str = "shop",
    ) -> None:
        self.engine = database.engine()
        self.table = outbox_table(table, stamped=stamped)
        self.table.metadata.create_all(self.engine)
        self.outbox = Outbox(client, self.engine, self.table, group=group)
        self.tx_ids: list[str] = []

    def place(self, topic: str, *orders: int, fails: bool = False, tx_id: str | None = None) -> str:
        tx_id = tx_id or f"{next(_numbers)}"
        with suppress(ZeroDivisionError), self.engine.begin() as db:
            for order in orders:
                self.outbox.add(db, topic, tx_id=tx_id, json=order, key=f"k{order}")
            if fails:
                raise ZeroDivisionError
        return tx_id

    def rows(self) -> int:
        with self.engine.connect() as db:
            return db.execute(sa.select(sa.func.count()).select_from(self.table)).scalar_one()


@pytest.fixture
def shop(database, client) -> Iterator[Shop]:
    made = Shop(database, client)
    yield made
    made.engine.dispose()


@pytest.fixture
def topic(service) -> str:
    return service.topic(f"outbox-{next(_numbers)}")


def texts(service, topic: str) -> list[str]:
    return [message["payload"] for message in service.messages(topic)]


def test_rows_are_published_in_order_and_those_of_one_local_transaction_together(
    service, shop, topic
):
    both = shop.place(topic, 1, 2)
    shop.place(topic, 3, fails=True)
    shop.place(topic, 4)

    assert shop.outbox.run_once() == 2
    assert shop.outbox.run_once() == 0

    assert texts(service, topic) == ["1", "2", "4"]
    assert service.messages(topic)[0]["key"] == "k1"
    assert len(service.transaction(f"ob-{both}")["messages"]) == 2
    assert shop.rows() == 0


def test_rows_of_a_stamped_table_stay_and_are_published_once(service, database, client, topic):
    shop = Shop(database, client, stamped=True)
    shop.place(topic, 1)

    assert shop.outbox.run_once() == 1
    assert shop.outbox.run_once() == 0

    assert texts(service, topic) == ["1"]
    assert shop.rows() == 1
    shop.engine.dispose()


@pytest.mark.parametrize("operation", ["beginTransaction", "commitTransaction"])
@pytest.mark.parametrize("answer", [False, True])
def test_a_stop_at_any_point_publishes_each_row_once(service, shop, topic, operation, answer):
    """The request or its answer is lost, and the process starts again."""
    shop.place(topic, 1, 2)
    service.drop(operation, answer=answer)
    with pytest.raises(Unreachable):
        shop.outbox.run_once()
    assert shop.rows() == 2

    shop.place(topic, 3)
    assert shop.outbox.run_once() == 2

    assert texts(service, topic) == ["1", "2", "3"]
    assert shop.rows() == 0


def test_a_stop_between_the_commit_and_the_local_one_publishes_once(service, shop, topic):
    """Also when the Idempotency-Key of the begin is forgotten."""
    shop.place(topic, 1)
    delete = shop.table.delete
    shop.table.delete = None  # fails, as if the process had ended here
    with pytest.raises(TypeError):
        shop.outbox.run_once()
    assert shop.rows() == 1
    shop.table.delete = delete

    service.advance(hours=25)
    assert shop.outbox.run_once() == 1

    assert texts(service, topic) == ["1"]


def test_a_transaction_that_a_check_has_rolled_back_is_published_under_the_next_id(
    service, shop, topic, client
):
    tx_id = shop.place(topic, 1)
    service.drop_commit()
    with pytest.raises(Unreachable):
        shop.outbox.run_once()
    client.resolve_transaction(f"ob-{tx_id}", "rollback")

    assert shop.outbox.run_once() == 1

    assert texts(service, topic) == ["1"]
    assert service.transaction(f"ob2-{tx_id}")["state"] == "committed"


def lose_the_commit(service, shop: Shop) -> None:
    """Publish, but the transaction stays prepared."""
    service.drop_commit()
    with pytest.raises(Unreachable):
        shop.outbox.run_once()


def test_the_second_try_of_a_transaction_is_none_of_another_tx_id(service, shop, topic, client):
    tx_id = shop.place(topic, 1)
    lose_the_commit(service, shop)
    client.resolve_transaction(f"ob-{tx_id}", "rollback")
    assert shop.outbox.run_once() == 1

    shop.place(topic, 2, tx_id=f"{tx_id}.2")
    assert shop.outbox.run_once() == 1

    assert (texts(service, topic), shop.rows()) == (["1", "2"], 0)


@pytest.mark.parametrize("is_decided", [False, True])
def test_a_second_try_of_an_earlier_version_is_found_again(
    service, shop, topic, client, is_decided
):
    """Its id was `ob-...2`."""
    tx_id = shop.place(topic, 1)
    lose_the_commit(service, shop)
    client.resolve_transaction(f"ob-{tx_id}", "rollback")
    message = TransactionMessageInput(topic, MessageInput(json=1, key="k1"))
    second = f"ob-{tx_id}.2"
    client.begin_transaction("shop", [message], transaction_id=second, idempotency_key=second)
    if is_decided:
        client.commit_transaction(second)

    assert shop.outbox.run_once() == 1

    assert (texts(service, topic), shop.rows()) == (["1"], 0)


def test_a_second_try_goes_on_beside_the_transaction_of_another_tx_id(service, shop, topic, client):
    tx_id = shop.place(topic, 1)
    lose_the_commit(service, shop)
    client.resolve_transaction(f"ob-{tx_id}", "rollback")
    other = Publisher(client, "shop")
    other.publish(f"{tx_id}.2", [TransactionMessageInput(topic, MessageInput(json=2))])

    assert shop.outbox.run_once() == 1

    assert (texts(service, topic), shop.rows()) == (["2", "1"], 0)


def place_as_another(shop: Shop, topic: str, tx_id: str, **fields: Any) -> None:
    """Write a row whose message is the JSON 1 and the key k1, but for these fields."""
    given = {"json": 1, "key": "k1", **fields}
    with shop.engine.begin() as db:
        shop.outbox.add(db, topic, tx_id=tx_id, **given)


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("group", {}),
        ("topic", {}),
        ("count", {}),
        ("json", {"json": 2}),
        ("body", {"json": UNSET, "payload": b"\xff"}),
        ("content_type", {"json": UNSET, "payload": "1"}),
        ("key", {"key": "k2"}),
        ("keys", {"key": None, "keys": ["k1", "k2"]}),
        ("tag", {"tag": "paid"}),
        ("ordering_key", {"ordering_key": "k1"}),
        ("properties", {"properties": {"shop": "2"}}),
    ],
)
@pytest.mark.parametrize("hours", [0, 25])
def test_rows_whose_tx_id_another_outbox_has_used_stay(
    service, shop, topic, database, client, what, fields, hours, caplog
):
    """Also when the Idempotency-Key of the other is forgotten."""
    tx_id = shop.place(topic, 1)
    assert shop.outbox.run_once() == 1
    service.advance(hours=hours)
    other = Shop(database, client, table="outbox_2", group="billing" if what == "group" else "shop")
    of_other = service.topic(f"outbox-{next(_numbers)}") if what == "topic" else topic

    place_as_another(other, of_other, tx_id, **fields)
    if what == "count":
        place_as_another(other, of_other, tx_id)

    assert other.outbox.run_once() == 0
    assert (other.rows(), other.outbox.refused_count) == (1 + (what == "count"), 1)
    assert texts(service, topic) == ["1"]
    assert f"{tx_id} was refused" in caplog.text
    other.engine.dispose()


def test_rows_whose_message_has_no_delay_are_not_published_as_a_delayed_one(
    service, shop, topic, database, client, caplog
):
    tx_id = f"delayed-{next(_numbers)}"
    place_as_another(shop, topic, tx_id, delay_ms=48 * 3_600_000)
    assert shop.outbox.run_once() == 1
    service.advance(hours=25)
    other = Shop(database, client, table="outbox_2")
    place_as_another(other, topic, tx_id)

    assert other.outbox.run_once() == 0

    assert (other.rows(), other.outbox.refused_count) == (1, 1)
    assert f"{tx_id} was refused" in caplog.text
    other.engine.dispose()


@pytest.mark.parametrize(("group", "order"), [("billing", 1), ("shop", 2)])
@pytest.mark.parametrize("hours", [0, 25])
def test_an_undecided_transaction_of_another_group_or_content_is_not_committed(
    service, shop, topic, database, client, group, order, hours
):
    """Also when its Idempotency-Key is forgotten. Its own outbox commits it later."""
    tx_id = shop.place(topic, 1)
    lose_the_commit(service, shop)
    service.advance(hours=hours)
    other = Shop(database, client, table="outbox_2", group=group)
    place_as_another(other, topic, tx_id, json=order)

    assert other.outbox.run_once() == 0

    assert texts(service, topic) == []
    assert (other.rows(), other.outbox.refused_count) == (1, 1)
    other.engine.dispose()
    assert shop.outbox.run_once() == 1
    assert texts(service, topic) == ["1"]


def test_rows_that_were_changed_behind_their_begin_do_not_publish_what_they_were(
    service, shop, topic
):
    """Also when the Idempotency-Key is forgotten. A check or an operator decides."""
    shop.place(topic, 1)
    lose_the_commit(service, shop)
    service.advance(hours=25)
    with shop.engine.begin() as db:
        db.execute(shop.table.update().values(message='{"json":2}'))

    assert shop.outbox.run_once() == 0

    assert texts(service, topic) == []
    assert (shop.rows(), shop.outbox.refused_count) == (1, 1)


@pytest.mark.parametrize("hours", [0, 25])
def test_a_second_try_leaves_the_undecided_transaction_of_another_tx_id_to_its_outbox(
    service, shop, topic, client, database, hours
):
    tx_id = shop.place(topic, 1)
    lose_the_commit(service, shop)
    client.resolve_transaction(f"ob-{tx_id}", "rollback")
    other = Shop(database, client, table="outbox_2")
    other.place(topic, 2, tx_id=f"{tx_id}.2")
    lose_the_commit(service, other)
    service.advance(hours=hours)

    assert shop.outbox.run_once() == 1
    assert texts(service, topic) == ["1"]
    assert other.outbox.run_once() == 1

    assert texts(service, topic) == ["1", "2"]
    other.engine.dispose()


def test_every_kind_of_message_is_known_again_when_its_key_is_forgotten(service, shop, topic):
    tx_id = f"kinds-{next(_numbers)}"
    with shop.engine.begin() as db:
        for fields in (
            {"json": {"price": 1.50, "count": 10**15, "name": "Zoë", "none": None}},
            {"json": None, "keys": ["a", "b"], "tag": "paid", "ordering_key": "o"},
            {"payload": b"\xff\x00", "properties": {"a": "b"}, "content_type": "image/png"},
            {"payload": "text"},
            {"payload": "", "delay_ms": 86_400_000},
        ):
            shop.outbox.add(db, topic, tx_id=tx_id, **fields)
    delete = shop.table.delete
    shop.table.delete = None  # fails, as if the process had ended here
    with pytest.raises(TypeError):
        shop.outbox.run_once()
    shop.table.delete = delete
    service.advance(hours=25)

    assert shop.outbox.run_once() == 1

    assert shop.rows() == 0
    assert len(texts(service, topic)) == 5  # the delay is over


def test_a_row_that_is_added_while_its_tx_id_is_published_stays(shop, topic, client):
    """Two local transactions have the same `tx_id` by mistake."""
    tx_id = shop.place(topic, 1)
    publish = shop.outbox._publisher.publish

    def publish_and_add(*given) -> None:
        publish(*given)
        shop.place(topic, 2, tx_id=tx_id)

    shop.outbox._publisher.publish = publish_and_add
    assert shop.outbox.run_once() == 1

    assert shop.rows() == 1


def test_rows_that_the_service_refuses_for_good_stay_and_stop_no_others(
    service, shop, topic, caplog
):
    shop.place("no..such topic", 1)
    with shop.engine.begin() as db:
        deep = [f'{{"json":{"[" * levels}{"]" * levels}}}' for levels in (200, 100_000)]
        for number, text in enumerate(("{", '{"no": "field"}', *deep)):
            row = {"tx_id": f"refused-{number}", "topic": topic, "message": text}
            db.execute(shop.table.insert().values(row))
    shop.place(topic, 2)

    assert shop.outbox.run_once() == 1

    assert texts(service, topic) == ["2"]
    assert (shop.rows(), shop.outbox.refused_count) == (5, 5)
    assert caplog.text.count("was refused") == 5


def test_more_refused_transactions_than_are_read_together_stop_no_others(
    service, shop, topic, monkeypatch
):
    monkeypatch.setattr(outbox, "_MOST_AT_ONCE", 10)
    for number in range(20):
        shop.place("no..such topic", number)
    shop.place(topic, 20)

    assert shop.outbox.run_once() == 1
    shop.place(topic, 21)
    assert shop.outbox.run_once() == 1

    assert texts(service, topic) == ["20", "21"]
    assert (shop.rows(), shop.outbox.refused_count) == (20, 20)


def test_a_refused_transaction_is_tried_again_later(service, shop, topic, monkeypatch):
    monkeypatch.setattr(outbox, "_FIRST_PAUSE_S", 0.0)
    shop.place("no..such topic", 1)
    assert shop.outbox.run_once() == 0
    with shop.engine.begin() as db:
        db.execute(shop.table.update().values(topic=topic))

    assert shop.outbox.run_once() == 1

    assert (texts(service, topic), shop.rows()) == (["1"], 0)


def test_several_processes_share_the_transactions_and_publish_each_once(
    service, shop, topic, database
):
    for number in range(30):
        shop.place(topic, number)
    client = Client(service.url)
    others = [Shop(database, client) for _ in range(3)]

    threads = [threading.Thread(target=run_until_empty, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(map(int, texts(service, topic))) == list(range(30))
    for one in others:
        one.engine.dispose()
    client.close()


def run_until_empty(shop: Shop) -> None:
    while shop.rows():
        shop.outbox.run_once()


def test_an_outbox_runs_until_it_is_stopped_also_while_the_service_is_away(
    service, shop, topic, client
):
    service.kill()
    thread = threading.Thread(target=shop.outbox.run)
    thread.start()
    tx_id = shop.place(topic, 1)
    service.restart()

    with Client(service.url) as patient:
        while not service.messages(topic):
            with suppress(Exception):
                patient.get_transaction(f"ob-{tx_id}", wait_ms=5_000)
    shop.outbox.stop()
    thread.join(30)

    assert not thread.is_alive()
    assert texts(service, topic) == ["1"]


def test_an_outbox_whose_client_was_closed_ends(service, shop, topic, database):
    with Client(service.url) as client:
        closed = Shop(database, client)
    closed.place(topic, 1)

    with pytest.raises(ClientClosed):
        closed.outbox.run()

    assert closed.rows() == 1
    closed.engine.dispose()
