"""The broker that the tests of this folder run: what they rely on."""

import pytest

from tests.rocketmq.driver import keys, message

pytestmark = pytest.mark.rocketmq


def test_a_killed_broker_serves_its_store_again_and_checks_its_transactions(stage):
    first = stage.broker()
    first.run("create_topic", topic="orders", queues=1)
    (sent,) = first.send(message("orders", b"x" * 9_000, keys=["k"], tag="t"), compress="zstd")
    first.begin("shop", "orders", b"undecided", keys=["tx"])
    assert first.problems() == []
    first.kill()

    again = stage.broker()
    again.run("answer_checks", group="shop", answer="commit", topics=["orders"])
    again.run("consume", group="billing", topics={"orders": "*"}, later={"k": [1]})
    again.ask_soon()
    checks = again.checks(bool)
    deliveries = again.deliveries("billing", lambda found: len(found) == 3)

    assert keys(checks) == ["tx"]
    assert sorted((keys([one])[0], one["reconsume_times"]) for one in deliveries) == [
        ("k", 0),
        ("k", 1),
        ("tx", 0),
    ]
    (served,) = [one for one in again.pull("orders") if keys([one]) == ["k"]]
    assert served["message_id"] == sent["message_id"]
    assert served["body"] == b"x" * 9_000
    assert served["sys_flag"] == 0x200  # zstd; the client clears the bit "compressed"
