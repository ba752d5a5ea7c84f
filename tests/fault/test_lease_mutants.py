"""C21 for leases: well-known mistakes, each planted and each found by the model of leases, which by
itself finds nothing.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from delivery.leases import events, replay, retry_message, snapshot
from delivery.leases.clock_reading import ClockReading
from delivery.leases.group import GroupLeases, LeaseTable
from delivery.leases.journal import LeaseJournal
from delivery.leases.key_order import KeyOrder
from delivery.leases.message_states import State
from delivery.leases.queue_slots import QueueSlots
from delivery.receive.select import MessageSelector
from storage.message import Durability, Message, StoredMessage
from tests.property.test_lease_model import LeaseMachine
from tests.support.model import first_failure

pytestmark = pytest.mark.faults

EXAMPLES = 200
# far more than any needs: which examples a seed stands for changes with every line of the project
SEEDS = range(1, 21)


def model_finds() -> str:
    """The first broken promise of some runs: what one passes by another meets."""
    return first_failure(LeaseMachine, SEEDS, examples=EXAMPLES)


def test_a_reset_that_ends_the_leases_of_the_whole_topic_is_found(monkeypatch):
    apply_reset = replay.apply_reset

    def by_topic(leases: GroupLeases, event: events.Reset) -> None:
        apply_reset(leases, event)
        topics, named = (
            {one.topic for one in event.positions},
            {one.queue_id for one in event.positions},
        )
        for queue in leases.queues:
            if queue.queue.topic in topics and queue.queue not in named:
                queue.restart(queue.slots.prefix)

    monkeypatch.setattr(replay, "apply_reset", by_topic)

    assert model_finds()


def test_a_reset_that_ends_the_retries_of_the_whole_topic_is_found(monkeypatch):
    apply_reset = replay.apply_reset

    def by_topic(leases: GroupLeases, event: events.Reset) -> None:
        apply_reset(leases, event)
        for position in event.positions if event.ends_retries else ():
            leases.retries.void_before_of[position.topic] = event.generation

    monkeypatch.setattr(replay, "apply_reset", by_topic)

    assert model_finds()


def test_a_position_that_leaves_leases_in_place_is_found(monkeypatch):
    def position_alone(self: QueueSlots, position: int) -> None:
        self.prefix = self.cursor = position

    monkeypatch.setattr(QueueSlots, "restart", position_alone)

    assert model_finds()


def test_a_handle_that_settles_anothers_lease_is_found(monkeypatch):
    def whoever_has_it(self: QueueSlots, offset: int, lease: int, now_ms: int) -> bool:
        slot = self.get(offset)
        return slot.state == State.LEASED and slot.deadline_ms > now_ms

    monkeypatch.setattr(QueueSlots, "is_leased", whoever_has_it)

    assert model_finds()


def test_a_lease_that_is_kept_on_paper_only_is_found(monkeypatch):
    monkeypatch.setattr(replay, "apply_leased", lambda leases, event, now: None)

    assert model_finds()


def test_an_attempt_that_a_kill_forgets_is_found(monkeypatch):
    apply_leased = replay.apply_leased

    def unnamed(leases: GroupLeases, event: events.Leased, now: ClockReading) -> None:
        apply_leased(leases, event, now)
        leases.attempts.forget(event.attempt_id or "")

    monkeypatch.setattr(replay, "apply_leased", unnamed)

    assert model_finds()


def test_a_count_of_attempts_that_a_retry_begins_anew_is_found(monkeypatch):
    monkeypatch.setattr(retry_message, "attempts_of", lambda message: 0)

    assert model_finds()


def test_a_release_that_counts_as_an_attempt_is_found(monkeypatch):
    apply = replay.apply

    def counting(table: LeaseTable, event: events.AnyLeaseEvent, now: ClockReading) -> None:
        if isinstance(event, events.Released):
            returned = [
                events.ReturnedMessage(*one.queue_id, one.offset, one.lease, one.due_ms, 0)
                for one in event.messages
            ]
            event = events.Returned(group=event.group, messages=returned)
        apply(table, event, now)

    monkeypatch.setattr(replay, "apply", counting)

    assert model_finds()


def test_a_delayed_release_whose_copy_counts_it_is_found(monkeypatch):
    retry_copy = retry_message.retry_copy

    def counting(message: StoredMessage, group: str, *, attempts: int, **how: int) -> Message:
        return retry_copy(message, group, attempts=max(1, attempts), **how)

    monkeypatch.setattr(retry_message, "retry_copy", counting)

    assert model_finds()


def test_a_withdrawn_message_that_is_handed_out_is_found(monkeypatch):
    monkeypatch.setattr(
        MessageSelector,
        "_is_to_come",
        lambda self, leases, queue, rules, message, attempt: queue.slots.unsettled > 0,
    )

    assert "was withdrawn" in model_finds()


def test_a_deleted_group_whose_retries_go_on_is_found(monkeypatch):
    apply = replay.apply

    def forgetful(table: LeaseTable, event: events.AnyLeaseEvent, now: ClockReading) -> None:
        apply(table, event, now)
        if isinstance(event, events.Deleted):
            retries = table.group(event.group).retries
            retries.generation = retries.void_before = retries.start = 0

    monkeypatch.setattr(replay, "apply", forgetful)

    assert model_finds()


def test_a_key_that_is_overtaken_is_found(monkeypatch):
    monkeypatch.setattr(KeyOrder, "is_blocked", lambda self, key: False)

    assert model_finds()


def test_an_acknowledgement_that_is_answered_before_its_sync_is_found(monkeypatch):
    append, write = LeaseJournal.append, LeaseJournal.write

    def unsynced_write(
        self: LeaseJournal, told: Sequence[events.AnyLeaseEvent], durability: object, **how: Any
    ) -> None:
        write(self, told, Durability.BUFFERED, **how)

    async def unsynced(
        self: LeaseJournal,
        messages: Sequence[Message],
        told: Sequence[events.AnyLeaseEvent],
        durability: object,
        **how: bool,
    ) -> object:
        return await append(self, messages, told, Durability.BUFFERED, **how)

    monkeypatch.setattr(LeaseJournal, "append", unsynced)
    monkeypatch.setattr(LeaseJournal, "write", unsynced_write)

    assert model_finds()


def test_a_snapshot_that_claims_more_than_it_holds_is_found(monkeypatch):
    dump = snapshot.dump_group

    def without_the_last_queue(leases: GroupLeases) -> object:
        queues, leases.queues = leases.queues, leases.queues[:-1]
        try:
            return dump(leases)
        finally:
            leases.queues = queues

    monkeypatch.setattr(snapshot, "dump_group", without_the_last_queue)

    assert model_finds()
