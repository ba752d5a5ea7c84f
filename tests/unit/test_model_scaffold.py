"""The scaffold of the models: what it reports of a broken promise, and what a life leaves."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from storage.local.options import FlushPolicy
from storage.message import Durability
from tests.support.builders import ORDERS, message
from tests.support.model import ModelMachine, first_failure, run_model
from tests.support.simulation import End


class KilledTwice(ModelMachine):
    """A model whose promise breaks in the third life."""

    @initialize()
    def begin(self) -> None:
        self.begin_lives(FlushPolicy.BEFORE_ACK)

    @rule()
    def kill(self) -> None:
        self.restart()

    @invariant()
    def two_lives_are_enough(self) -> None:
        assert self.lives < 3, "a third life"

    def finish(self) -> None:
        assert self.lives < 3, "compared although a step had failed"


ON_ONE_MACHINE = [one for one in Durability if one is not Durability.REPLICATED]


class Sending(ModelMachine):
    """A store whose messages stay through each end of a life, as far as was promised."""

    taken = 0  # of all examples: buffered messages that a power cut took

    @initialize()
    def begin(self) -> None:
        self.stored = 0
        self.begin_lives(FlushPolicy.INTERVAL, flush_interval_ms=60_000)

    async def start(self) -> None:
        await self.store.create_topic("orders", queue_count=1)

    @rule(end=st.sampled_from(End), durability=st.sampled_from(ON_ONE_MACHINE))
    def send_and_restart(self, end: End, durability: Durability) -> None:
        self.call(self.store.append([message(b"x" * 5_000)], durability=durability))
        is_promised = durability is Durability.SYNCED or end is not End.CUT
        before_ms = self.now_ms

        self.restart(end, down_ms=5_000)

        found = self.call(self.store.offsets(ORDERS)).end
        # A buffered message may survive: to make space ahead of the log is to sync it.
        assert self.stored + is_promised <= found <= self.stored + 1
        assert self.now_ms >= before_ms + 5_000
        Sending.taken += self.stored + 1 - found
        self.stored = found


def test_a_failure_is_reported_with_its_steps_its_lives_and_what_reproduces_it():
    with pytest.raises(AssertionError, match="a third life") as caught:
        run_model(KilledTwice, 1, examples=20, steps=10, shrinks=True)

    report = "\n".join(caught.value.__notes__)
    assert report.count("state.kill()") == 2
    assert report.index("life 1: kill after") < report.index("life 2: kill after")
    assert "@reproduce_failure" in report


def test_the_first_failure_names_the_seed_that_found_it():
    found = first_failure(KilledTwice, [7, 8], examples=20)

    assert found.startswith("seed 7: AssertionError: a third life")


def test_the_disk_of_a_life_holds_what_the_end_of_the_life_before_left():
    run_model(Sending, 1, examples=20, steps=10)

    assert Sending.taken > 0
