"""The snippets of docs/transactions.md, executed in their order against a real service."""

import re
from pathlib import Path
from textwrap import indent

import pytest
from fastapi import FastAPI
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError

from escrowmq_client import (
    Checker,
    MessageInput,
    Outbox,
    TransactionMessageInput,
)
from pytest_escrowmq.service import EscrowMQ

PAGE = (Path(__file__).parents[3] / "docs" / "transactions.md").read_text("utf-8")
SECTION = PAGE.partition("## With the Python client\n")[2].partition("\n## ")[0]
SNIPPETS = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
README = (Path(__file__).parents[3] / "README.md").read_text("utf-8")


def test_the_front_page_shows_the_transaction_of_the_page():
    (shown,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

    assert indent(shown, "    ") in SNIPPETS[0]


def test_the_snippets_of_the_page_do_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # what runs for ever there runs once here
    monkeypatch.setattr(Checker, "run", Checker.run_once)
    monkeypatch.setattr(Outbox, "run", Outbox.run_once)
    engine = create_engine("sqlite:///shop.db")
    with engine.begin() as db:
        db.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, total TEXT)"))
    transaction, on_purpose, checker, early, webhook, outbox = SNIPPETS
    (tmp_path / "service").mkdir()
    with EscrowMQ(tmp_path / "service") as service:
        names: dict = {"SIGNING_SECRET": "whsec_"}
        service.topic("orders")

        execute(transaction, names, service)
        names["place"]({"id": 1, "total": "19.90"})
        assert payloads(service) == ['{"id":1,"total":"19.90"}']
        with pytest.raises(IntegrityError):
            names["place"]({"id": 1, "total": "19.90"})
        execute(on_purpose, names, service)
        assert names["place_unless_it_exists"]({"id": 1, "total": "19.90"}) is False
        assert len(payloads(service)) == 1
        lose_a_commit(names, service)
        execute(checker, names, service)
        assert payloads(service)[1:] == ['{"id":2}']
        execute(early, names, service)
        names["place_while_a_user_waits"]({"id": 3, "total": "1.00"})
        assert payloads(service)[2:] == ['{"id":3,"total":"1.00"}']
        names["impatient"].close()
        execute(webhook, names, service)
        assert isinstance(names["app"], FastAPI)
        execute(outbox, names, service)
        assert payloads(service)[3:] == ['{"id":3}']
        names["client"].close()
    engine.dispose()
    names["engine"].dispose()


def lose_a_commit(names: dict, service: EscrowMQ) -> None:
    """The program dies behind its local commit; its check is due."""
    message = TransactionMessageInput("orders", MessageInput(json={"id": 2}))
    names["client"].begin_transaction("shop", [message], transaction_id="order-2")
    with names["engine"].begin() as db:
        names["markers"].mark(db, "order-2")
    service.advance(minutes=1)


def execute(snippet: str, names: dict, service: EscrowMQ) -> None:
    source = snippet.replace("http://127.0.0.1:8080", service.url)
    exec(compile(source, "docs/transactions.md", "exec"), names)


def payloads(service: EscrowMQ) -> list[str]:
    return [message["payload"] for message in service.messages("orders")]
