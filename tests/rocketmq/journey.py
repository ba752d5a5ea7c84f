"""A store that changes hands again and again, and the ledger of all that became of it.

Each turn is one side's: it writes, decides, consumes, and is stopped or killed. The ledger knows
what was sent and decided, so at the end it can say: each message once, each transaction one
outcome, each body equal. What may come twice is excused by name:

- what a broker's consumers got in a turn that ended with kill -9, as it loses their offsets;
- what a broker delivered with a delay in such a turn, as it loses how far it had delivered.

It loses how far it had asked, too, but each turn of a broker is followed by one of EscrowMQ, whose
stop writes that: it asks about each transaction once, at its newest half.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from storage.formats import properties
from tests.rocketmq.broker import Broker
from tests.rocketmq.driver import Json, keys, message
from tests.rocketmq.service import Service, entry
from tests.rocketmq.stage import Stage
from tests.support.http import until
from txn.half_message import HALF_QUEUE, OP_QUEUE

TOPIC, GROUP, PRODUCERS = "orders", "billing", "shop"
QUEUES = 4
COMPRESSIONS = (None, "zlib", "lz4", "zstd")
_AT_ONCE = 1 << 62


@dataclass
class Ledger:
    """What was sent, decided and consumed; messages go by their key."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    published: set[str] = field(default_factory=set)
    delayed: set[str] = field(default_factory=set)
    # Undecided: the id of the transaction, its keys, and what its producer is going to say.
    undecided: dict[str, tuple[list[str], str]] = field(default_factory=dict)
    rolled_back: set[str] = field(default_factory=set)
    consumed: Counter[str] = field(default_factory=Counter)
    excused: set[str] = field(default_factory=set)  # from being consumed once
    wrong_bodies: list[str] = field(default_factory=list)
    # What was done, in its order, to be read when something is wrong.
    history: list[str] = field(default_factory=list)

    def note(self, what: str, *its_keys: str) -> None:
        self.history.append(f"{what}: {' '.join(its_keys)}")

    def of(self, some: set[str]) -> str:
        """The history of these messages, and the turns."""
        told = [line for line in self.history if line.startswith("*") or some & {*line.split()}]
        return "\n".join([f"{sorted(some)}", *told])

    def decided(self, transaction_id: str) -> None:
        its_keys, decision = self.undecided.pop(transaction_id)
        self.note(f"decided {transaction_id} {decision}", *its_keys)
        (self.published if decision == "commit" else self.rolled_back).update(its_keys)

    def delivered(self, key: str, body: bytes) -> None:
        self.consumed[key] += 1
        self.note("consumed", key)
        if body != self.bodies[key]:
            self.wrong_bodies.append(key)

    def missing(self) -> set[str]:
        return {key for key in self.published if not self.consumed[key]}

    def assert_balanced(self) -> None:
        """Each message once per group, each transaction one outcome, each body equal."""
        assert self.wrong_bodies == [], self.of({*self.wrong_bodies})
        assert self.missing() == set(), self.of(self.missing())
        unpublished = {*self.consumed} - self.published
        assert unpublished == set(), self.of(unpublished)
        again = {key for key, count in self.consumed.items() if count > 1}
        again -= self.excused
        assert again == set(), self.of(again)


def decided_at(broker: Broker) -> set[str]:
    """The keys of the halves whose newest copy is named by an op."""
    newest = {keys([half])[0]: half["queue_offset"] for half in broker.pull(HALF_QUEUE.topic)}
    named = {
        int(one) for op in broker.pull(OP_QUEUE.topic) for one in op["body"].split(b",") if one
    }
    return {key for key, offset in newest.items() if offset in named}


class Journey:
    """The store, its ledger, and the steps that a turn is made of."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage, self.ledger = stage, Ledger()
        self.random = random.Random(seed)
        self._names = 0
        self._turn: list[str] = []  # keys that consumers of the broker got in this turn
        self._decided: set[str] = set()  # keys that producers of the broker decided in this turn
        self._checks, self._deliveries = 0, 0  # of this turn, counted so far

    # One side's turn.

    def broker(self) -> Broker:
        self.ledger.note("* a broker")
        broker = self.stage.broker()
        self._turn, self._checks, self._deliveries = [], 0, 0
        self._decided = set()
        if TOPIC not in broker.run("topics"):
            broker.run("create_topic", topic=TOPIC, queues=QUEUES)
        return broker

    def end_broker(self, broker: Broker, *, killed: bool) -> None:
        self.ledger.note(f"* the broker is {'killed' if killed else 'stopped'}")
        # A producer's decision has no answer: one that has not reached the log is lost with a kill.
        until(lambda: self._decided <= decided_at(broker), "an op of each decision")
        problems = broker.problems()
        assert problems == [], problems
        if killed:
            self.ledger.excused.update(self._turn)
            self.ledger.excused.update(self.ledger.delayed & self.ledger.missing())
            broker.kill()
        else:
            broker.stop()

    def service(self) -> Service:
        self.ledger.note("* EscrowMQ")
        service = self.stage.service()
        service.put(f"topics/{TOPIC}", {"queues": QUEUES})
        service.put(f"groups/{GROUP}", {"topics": [{"topic": TOPIC}]})
        return service

    def end_service(self, service: Service, *, killed: bool) -> None:
        """After kill -9 it is started once more: a stop writes what a broker needs."""
        self.ledger.note(f"* EscrowMQ is {'killed' if killed else 'stopped'}")
        if killed:
            service.server.kill()
            service = self.stage.service()
        service.stop()

    # Steps of a broker's turn.

    def produce(self, broker: Broker, count: int) -> None:
        for _ in range(count):
            key, body = self._message()
            broker.send(
                message(TOPIC, body, keys=[key], flag=self.random.choice((0, 7, -1))),
                compress=self.random.choice(COMPRESSIONS),
            )
            self.ledger.published.add(key)

    def produce_delayed(self, broker: Broker, count: int) -> None:
        for _ in range(count):
            key, body = self._message()
            delay: Json = {"level": 1} if self.random.random() < 0.5 else {"delay_ms": 1_500}
            compress = self.random.choice(COMPRESSIONS)
            broker.send(message(TOPIC, body, keys=[key], **delay), compress=compress)
            self.ledger.published.add(key)
            self.ledger.delayed.add(key)
            self.ledger.note(f"delayed {delay}", key)

    def transact(self, broker: Broker, count: int) -> None:
        """Half messages; of each third the producer commits, rolls back, or does not know yet."""
        for number in range(count):
            key, body = self._message()
            answer = ("commit", "rollback", "unknown")[number % 3]
            begun = broker.begin(PRODUCERS, TOPIC, body, keys=[key], answer=answer)
            decision = answer if answer != "unknown" else self._decision()
            self.ledger.undecided[begun["transaction_id"]] = ([key], decision)
            if answer != "unknown":
                self.ledger.decided(begun["transaction_id"])
                self._decided.add(key)

    def answer_checks(self, broker: Broker, count: int) -> None:
        """Let the broker ask about everything undecided; the producer decides so many of it."""
        chosen = self.random.sample(
            sorted(self.ledger.undecided), min(count, len(self.ledger.undecided))
        )
        by_key = {
            key: self.ledger.undecided[one][1]
            for one in chosen
            for key in self.ledger.undecided[one][0]
        }
        asks = {key for its_keys, _ in self.ledger.undecided.values() for key in its_keys}
        broker.run(
            "answer_checks", group=PRODUCERS, answer="unknown", by_key=by_key, topics=[TOPIC]
        )
        broker.ask_soon()
        asked = keys(broker.checks(lambda found: asks <= set(keys(found)), self._checks))
        self._checks += len(asked)
        broker.ask_no_more()
        self.ledger.note("asked", *asked)
        decided = {*asked} - asks
        assert decided == set(), f"it asks about what is decided: {self.ledger.of(decided)}"
        assert asks <= {*asked}, f"it does not ask about {self.ledger.of(asks - {*asked})}"
        for one in chosen:
            self.ledger.decided(one)
        self._decided.update(by_key)

    def consume(
        self, broker: Broker, *, at_least: int, refuse: int = 0, to_the_end: bool = False
    ) -> None:
        """A Java consumer of the group, until it has got so many; it refuses some of them once.

        `to_the_end`: it has got everything then, and the broker has its offsets. Without, the
        broker may have older ones (Broker.end_consumer), and the messages behind them may be
        delivered again.
        """
        # A broker stores no retry of a message without a body; its client tries again by itself.
        missing = [
            key
            for key in sorted(self.ledger.missing() - self.ledger.delayed)
            if self.ledger.bodies[key]
        ]
        later = {key: [1] for key in self.random.sample(missing, min(refuse, len(missing)))}
        broker.run("consume", group=GROUP, topics={TOPIC: "*"}, later=later)
        wanted = min(at_least, len(self.ledger.missing()))

        def enough(found: list[Json]) -> bool:
            got = {keys([one])[0] for one in found if not one["refused"]}
            refused = {keys([one])[0] for one in found if one["refused"]}
            return len(got & self.ledger.missing()) >= wanted and refused >= later.keys()

        broker.deliveries(GROUP, enough, self._deliveries)
        if to_the_end:
            broker.end_consumer(GROUP, TOPIC)
        else:
            broker.run("end_consumer", group=GROUP)
        found = broker.deliveries(GROUP, lambda _: True, self._deliveries)
        self._deliveries += len(found)
        self.ledger.excused.update(broker.not_noted(GROUP, TOPIC, found))
        for one in found:
            (key,) = keys([one])
            self._turn.append(key)
            if one["refused"]:
                self.ledger.note("refused", key)
                self.ledger.delayed.add(key)
            else:
                # What had no body in a topic whose messages a broker stores again has one byte.
                is_empty = properties.NO_BODY in one["properties"]
                self.ledger.delivered(key, b"" if is_empty else one["body"])

    # Steps of EscrowMQ's turn.

    def send(self, service: Service, count: int) -> None:
        for _ in range(count):
            key, body = self._message(may_be_empty=True)
            service.send(TOPIC, body, key=key)
            self.ledger.published.add(key)

    def send_delayed(self, service: Service, count: int) -> None:
        for _ in range(count):
            key, body = self._message(may_be_empty=True)
            delay: Json = {"delay_level": 1} if self.random.random() < 0.5 else {"delay_ms": 1_500}
            service.send(TOPIC, body, key=key, **delay)
            self.ledger.published.add(key)
            self.ledger.delayed.add(key)
            self.ledger.note(f"delayed {delay}", key)

    def begin(self, service: Service, count: int) -> None:
        for _ in range(count):
            given = [self._message(may_be_empty=True) for _ in range(self.random.randint(1, 3))]
            transaction_id = f"txn-{given[0][0]}"
            service.begin(
                PRODUCERS, transaction_id, *[entry(TOPIC, body, key=key) for key, body in given]
            )
            self.ledger.undecided[transaction_id] = ([key for key, _ in given], self._decision())

    def decide(self, service: Service, count: int) -> None:
        """Of what either side has begun."""
        for one in self.random.sample(
            sorted(self.ledger.undecided), min(count, len(self.ledger.undecided))
        ):
            service.decide(one, self.ledger.undecided[one][1])
            self.ledger.decided(one)

    def receive(self, service: Service, count: int, refuse: int = 0) -> None:
        """Receive so many messages, acknowledge them, and refuse some: a retry is to come."""
        for _ in range(count):
            for one in service.receive_once(GROUP, max_messages=1):
                if refuse:
                    service.nack(GROUP, one, delay_ms=1_000)
                    self.ledger.note("refused", one["key"])
                    self.ledger.delayed.add(one["key"])
                    refuse -= 1
                else:
                    service.ack(GROUP, one)
                    self.ledger.delivered(one["key"], one["body"])

    def check_states(self, service: Service) -> None:
        """Every transaction that is open is shown as such."""
        for one in self.ledger.undecided:
            assert service.state(one) == "prepared", one

    # The end.

    def finish(self, broker: Broker) -> None:
        """All transactions are decided, and the group gets all that is left."""
        self.answer_checks(broker, len(self.ledger.undecided))
        self.consume(broker, at_least=_AT_ONCE, to_the_end=True)
        stored = Counter(keys(broker.pull(TOPIC)))
        assert {key for key in stored if key not in self.ledger.published} == set()
        again = {key for key, count in stored.items() if count > 1}
        again -= self.ledger.excused & self.ledger.delayed
        assert again == set(), self.ledger.of(again)
        self.ledger.assert_balanced()

    def _message(self, *, may_be_empty: bool = False) -> tuple[str, bytes]:
        self._names += 1
        key = f"k{self._names}"
        size = (
            self.random.choice((0, 1, 40, 6_000))
            if may_be_empty
            else self.random.choice((1, 40, 6_000))
        )
        self.ledger.note("made", key)
        self.ledger.bodies[key] = (key.encode() * (1 + size // len(key)))[:size]
        return key, self.ledger.bodies[key]

    def _decision(self) -> str:
        return self.random.choice(("commit", "rollback"))
