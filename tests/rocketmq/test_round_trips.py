"""A broker's store goes to EscrowMQ and back; and campaign C18: it does so again and again."""

import random
from collections.abc import Callable

import pytest

from tests.fault.campaign_size import sized
from tests.rocketmq.broker import Broker
from tests.rocketmq.journey import Journey
from tests.rocketmq.service import Service

pytestmark = pytest.mark.rocketmq


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_store_goes_to_escrowmq_and_back_and_each_message_is_consumed_once(stage, killed):
    journey = Journey(stage, seed=18)

    broker = journey.broker()
    journey.produce(broker, 10)
    journey.transact(broker, 9)
    journey.answer_checks(broker, 0)
    journey.consume(broker, at_least=8, refuse=2)
    journey.produce(broker, 10)
    journey.produce_delayed(broker, 4)
    journey.transact(broker, 6)
    journey.end_broker(broker, killed=killed)

    service = journey.service()
    journey.check_states(service)
    journey.decide(service, 2)
    journey.send(service, 6)
    journey.send_delayed(service, 4)
    journey.begin(service, 4)
    journey.decide(service, 2)
    journey.receive(service, 8, refuse=2)
    journey.end_service(service, killed=killed)

    broker = journey.broker()
    journey.produce(broker, 3)
    journey.finish(broker)


BROKERS_STEPS: tuple[Callable[[Journey, Broker], None], ...] = (
    lambda journey, broker: journey.produce(broker, 6),
    lambda journey, broker: journey.produce_delayed(broker, 2),
    lambda journey, broker: journey.transact(broker, 6),
    lambda journey, broker: journey.answer_checks(broker, 2),
    lambda journey, broker: journey.consume(broker, at_least=6, refuse=1),
)
SERVICES_STEPS: tuple[Callable[[Journey, Service], None], ...] = (
    lambda journey, service: journey.send(service, 6),
    lambda journey, service: journey.send_delayed(service, 2),
    lambda journey, service: journey.begin(service, 3),
    lambda journey, service: journey.decide(service, 3),
    lambda journey, service: journey.receive(service, 6, refuse=1),
)


@pytest.mark.parametrize("seed", range(18, 18 + sized(ci=3, full=12)))
def test_a_store_that_changes_hands_again_and_again_loses_and_doubles_nothing(stage, seed):
    """The seed is in the name of the test."""
    journey, chance = Journey(stage, seed), random.Random(seed)
    for _ in range(sized(ci=4, full=8)):
        broker = journey.broker()
        for _ in range(chance.randint(4, 7)):
            chance.choice(BROKERS_STEPS)(journey, broker)
        journey.end_broker(broker, killed=chance.random() < 0.6)
        for _ in range(chance.randint(1, 2)):
            service = journey.service()
            journey.check_states(service)
            for _ in range(chance.randint(4, 7)):
                chance.choice(SERVICES_STEPS)(journey, service)
            journey.end_service(service, killed=chance.random() < 0.5)
    journey.finish(journey.broker())
