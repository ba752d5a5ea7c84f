"""The proof of one transaction says what a plain audit of the whole log says, whatever has become
of it.
"""

import pytest

from app.audit.proof import DELAY_TOPICS, Evidence, facts_of
from audit.verdicts import FLAGS, verdict
from storage.formats import names, properties
from storage.message import StoredMessage, TransactionBits
from tests.support import broker_log, plain_audit
from tests.support.planted import FLAGGED, plant
from txn import half_message

_OF_TOPIC = {names.HALF_TOPIC: 0, names.CHECK_TOPIC: 2, names.OP_TOPIC: 3}
_DISCARDED = 4


def evidence_of(messages: list[StoredMessage], transaction_id: str) -> Evidence:
    """What the service would find for it by its index: finals by the ids of the halves."""
    parts: tuple[list[StoredMessage], ...] = ([], [], [], [], [])
    own = [one for one in messages if one.system.get(properties.TRANSACTION_ID) == transaction_id]
    ids = {one.message_id for one in own if one.queue.topic == names.HALF_TOPIC}
    for message in own:
        topic = message.queue.topic
        if topic in _OF_TOPIC:
            parts[_OF_TOPIC[topic]].append(message)
        elif half_message.is_discarded_half(message) and topic == names.HELD_TOPIC:
            parts[_DISCARDED].append(message)
        elif message.message_id in ids and message.transaction is TransactionBits.COMMIT:
            parts[1].append(message)
    halves = {half.queue_offset for half in parts[0]}
    for message in messages:
        if message.queue.topic == names.OP_TOPIC and message not in parts[3]:
            op = half_message.read_op(message)
            if op.transaction_id is None and not halves.isdisjoint(op.half_offsets):
                parts[3].append(message)
    return Evidence(*parts)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    written, truth = plant(tmp_path_factory.mktemp("planted") / "store", times=1)
    return plain_audit.read_log(written.folder, end=written.end), truth


def test_every_planted_fate_gets_the_verdict_that_is_true_of_it(planted):
    log, truth = planted
    begun = [name for name in truth if evidence_of(log.messages, name).halves]
    assert len(begun) > 40
    assert any(one.queue.topic in DELAY_TOPICS for one in log.messages)

    found = {
        name: verdict(facts_of(evidence_of(log.messages, name), log_begin=0)) for name in begun
    }

    assert found == {name: truth[name] for name in begun}


def test_whatever_a_broker_did_with_a_transaction_has_the_verdict_that_it_means(tmp_path):
    """Of a final without an op the service writes the op before anybody asks."""
    _, truth = broker_log.plant(tmp_path)
    log = plain_audit.read_log(tmp_path / "commitlog", end=1 << 40)
    asked = [name for name in truth if not name.startswith("final_without_op")]

    found = {
        name: verdict(facts_of(evidence_of(log.messages, name), log_begin=0)) for name in asked
    }

    assert found == {name: truth[name] for name in asked}


def test_every_planted_flag_is_seen_and_no_other(planted):
    log, truth = planted
    evidence = {name: evidence_of(log.messages, name) for name in truth}

    for name, one in evidence.items():
        facts = facts_of(one, log_begin=0)
        expected = [
            FLAGGED[fate] for fate in [name.partition(".")[0]] if fate in FLAGGED and one.halves
        ]
        assert [flag for flag, fact in FLAGS.items() if fact in facts] == expected, name


def test_what_began_before_the_log_does_cannot_be_verified(planted):
    log, truth = planted
    name = next(name for name, fate in truth.items() if fate == "committed_once")
    evidence = evidence_of(log.messages, name)._replace(halves=[], finals=[])

    assert verdict(facts_of(evidence, log_begin=8)) == "unverifiable_retention"
    assert verdict(facts_of(evidence, log_begin=0)) == "op_without_half"
