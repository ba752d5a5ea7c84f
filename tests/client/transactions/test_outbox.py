"""The outbox: rows of one local transaction are published together, once, whatever stops it."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest
import sqlalchemy as sa

from escrowmq_client import Client, Unreachable, outbox
from escrowmq_client.outbox import Outbox, outbox_table

_numbers = count(1)


class Shop:
    """A program with an outbox in its database."""

    def __init__(self, database, client, *, stamped: bool = False) -> None:
        self.engine = database.engine()
        self.table = outbox_table("outbox", stamped=stamped)
        self.table.metadata.create_all(self.engine)
        self.outbox = Outbox(client, self.engine, self.table, group="shop")
        self.tx_ids: list[str] = []

    def place(self, topic: str, *orders: int, fails: bool = False) -> str:
        tx_id = f"{next(_numbers)}"
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
    assert service.transaction(f"ob-{tx_id}.2")["state"] == "committed"


def test_rows_that_the_service_refuses_for_good_stay_and_stop_no_others(
    service, shop, topic, caplog
):
    shop.place("no..such topic", 1)
    with shop.engine.begin() as db:
        for text in ("{", '{"no": "field"}'):
            db.execute(shop.table.insert().values(tx_id=text, topic=topic, message=text))
    shop.place(topic, 2)

    assert shop.outbox.run_once() == 1

    assert texts(service, topic) == ["2"]
    assert (shop.rows(), shop.outbox.refused_count) == (3, 3)
    assert "was refused" in caplog.text


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
