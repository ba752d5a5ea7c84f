"""Which node may take the place of the service, by what the others say and promise."""

import asyncio
from collections.abc import Callable

import pytest

from app.fencing.promotion import Candidate, NoAnswer, Quorum
from app.fencing.schemas import NodePromise, PromiseInput
from app.replicas.options import ReplicaOptions
from app.replicas.promise import CannotPromote, LogPlace, Promise
from app.replicas.promotion import claim_alone
from app.word_sets import NodeRole

THREE = ReplicaOptions(node="b", nodes=("a", "b", "c"), copies=2, ha_host="127.0.0.1")
FIVE = ReplicaOptions(node="b", nodes=("a", "b", "c", "d", "e"), copies=2, ha_host="127.0.0.1")
B = Candidate("b", LogPlace(3, 1_000), Promise())


class Node:
    """Another node at the end of a link that can be cut."""

    def __init__(
        self,
        name: str,
        place: LogPlace | None = B.place,
        *,
        promise: Promise | None = None,
        role: NodeRole = "replica",
        is_cut: bool = False,
        is_connected: bool = False,
    ) -> None:
        self.name, self.url = name, f"http://{name}"
        self.place, self.role = place, role
        self.promise = promise or Promise()
        self.is_cut, self.is_connected = is_cut, is_connected

    async def get_promise(self) -> NodePromise:
        if self.is_cut:
            raise NoAnswer("the link is cut")
        answer = NodePromise(node=self.name, role=self.role, epoch=self.promise.epoch)
        answer.connected = self.is_connected
        if self.place is not None:
            answer.last_epoch, answer.end_offset = self.place
        return answer

    async def make_promise(self, given: PromiseInput) -> NodePromise:
        granted = self.promise.allows(given.epoch, given.node)
        if granted:
            self.promise = Promise(given.epoch, given.node)
        answer = await self.get_promise()
        answer.granted = granted
        return answer


def promote(*others: Node, options: ReplicaOptions = THREE, candidate: Candidate = B) -> int:
    """The epoch to begin in. Raises CannotPromote."""

    async def main() -> int:
        quorum = Quorum(options, others)
        heard = await quorum.ask()
        epoch = quorum.epoch_for(candidate, heard)
        await quorum.fence(candidate, epoch, heard)
        return epoch

    return asyncio.run(main())


def test_of_three_nodes_one_other_must_promise():
    c = Node("c")
    assert promote(Node("a", is_cut=True), c) == 1_003
    assert c.promise == Promise(1_003, "b")
    with pytest.raises(CannotPromote, match="0 of the other nodes can promise, 1 must"):
        promote(Node("a", is_cut=True), Node("c", is_cut=True))


def test_of_five_nodes_with_two_copies_three_others_must_promise():
    others = [Node(name) for name in "acde"]
    others[0].is_cut = True
    assert promote(*others, options=FIVE) == 1_003
    others[1].is_cut = True
    with pytest.raises(CannotPromote, match="2 of the other nodes can promise, 3 must"):
        promote(*others, options=FIVE)


def test_of_two_nodes_none_must_be_asked():
    two = ReplicaOptions(node="b", nodes=("a", "b"), copies=2, ha_host="127.0.0.1")
    assert promote(Node("a", is_cut=True), options=two) == 1_003


@pytest.mark.parametrize("place", [LogPlace(3, 1_001), LogPlace(4, 10)])
def test_the_node_with_the_newer_log_is_the_one_to_promote(place):
    c = Node("c", place)
    with pytest.raises(CannotPromote, match="Promote c"):
        promote(Node("a", is_cut=True), c)
    assert c.promise == Promise(), "it can still follow the service"


def test_a_log_that_goes_on_after_it_was_asked_is_seen_with_the_promise():
    class Late(Node):
        async def make_promise(self, given: PromiseInput) -> NodePromise:
            self.place = LogPlace(3, 2_000)
            return await super().make_promise(given)

    with pytest.raises(CannotPromote, match="Promote c"):
        promote(Late("c"))


def test_a_service_that_runs_must_be_stopped_first():
    a = Node("a", LogPlace(3, 900), role="primary")
    c = Node("c")
    with pytest.raises(CannotPromote, match="a runs as the service"):
        promote(a, c)
    assert c.promise == Promise()


def test_a_node_whose_log_is_not_open_yet_is_not_counted_on():
    with pytest.raises(CannotPromote, match="c is starting"):
        promote(Node("c", None))


def test_the_epoch_is_later_than_every_promise():
    c = Node("c", promise=Promise(2_005, "a"))
    assert promote(c) == 3_005
    assert promote(Node("c"), candidate=B._replace(promised=Promise(4_001, "a"))) == 5_001


def test_a_promise_that_is_not_made_ends_it():
    class Taken(Node):
        async def make_promise(self, given: PromiseInput) -> NodePromise:
            self.promise = Promise(given.epoch, "a")  # in this moment
            return await super().make_promise(given)

    with pytest.raises(CannotPromote, match="c does not promise"):
        promote(Taken("c"))


def test_a_node_of_another_service_is_asked_for_nothing():
    """It is a name server of this one, too."""
    x, c = Node("x"), Node("c")
    assert promote(Node("a", is_cut=True), x, c) == 1_003
    assert x.promise == Promise()
    other = Service("x")
    assert take_over(other, c) == ["primary", "replica"]
    assert other.promise == Promise()


def test_a_node_counts_once_and_a_stranger_does_not():
    twice = ReplicaOptions(node="b", nodes=("a", "b", "c"), copies=1)
    with pytest.raises(CannotPromote, match="1 of the other nodes can promise, 2 must"):
        promote(Node("c"), Node("c"), Node("x"), Node("b"), options=twice)


def check_loss(*others: Node, options: ReplicaOptions = THREE) -> None:
    async def main() -> None:
        quorum = Quorum(options, others)
        quorum.check_loss(await quorum.ask())

    asyncio.run(main())


def test_a_service_is_lost_when_no_other_replica_is_connected_to_it():
    check_loss(Node("a", is_cut=True), Node("c"))
    with pytest.raises(CannotPromote, match="c is connected to the service"):
        check_loss(Node("a", is_cut=True), Node("c", is_connected=True))


def test_a_node_that_could_not_go_on_alone_does_not_take_the_place_of_the_service():
    two = ReplicaOptions(node="b", nodes=("a", "b"), copies=2, ha_host="127.0.0.1")
    with pytest.raises(CannotPromote, match="0 of the other nodes answer"):
        check_loss(Node("a", is_cut=True), options=two)
    check_loss(Node("a"), options=two)


def test_of_nodes_that_are_as_far_the_first_by_name_tries_first():
    async def before(candidate: Candidate, *others: Node) -> list[str]:
        quorum = Quorum(THREE, others)
        return quorum.before(candidate, await quorum.ask())

    assert asyncio.run(before(B, Node("a"), Node("c"))) == ["a"]
    assert asyncio.run(before(B, Node("a", LogPlace(3, 999)), Node("c"))) == []
    assert asyncio.run(before(B, Node("a", is_cut=True), Node("c"))) == []
    assert asyncio.run(before(B, Node("a", role="primary"), Node("c"))) == []


def test_a_replica_is_left_out_that_has_promised_a_later_service_and_follows_none():
    later = Promise(4_000, "c")

    async def left_out(*others: Node) -> list[str]:
        quorum = Quorum(THREE, others)
        return quorum.left_out(await quorum.ask(), 3_000)

    assert asyncio.run(left_out(Node("a", promise=later), Node("c"))) == ["a"]
    for other in (
        Node("a", promise=Promise(3_000, "b")),
        Node("a", promise=later, is_connected=True),
        Node("a", promise=later, role="primary"),
        Node("a", promise=later, is_cut=True),
        Node("x", promise=later),
    ):
        assert asyncio.run(left_out(other)) == []


EMPTY = LogPlace(0, 0)
NEW = Candidate("b", EMPTY, Promise())


def test_a_node_without_a_log_begins_one_where_all_others_say_that_they_have_none():
    assert promote(Node("a", EMPTY), Node("c", EMPTY), candidate=NEW) == 1_000
    with pytest.raises(CannotPromote, match="one of them could have messages"):
        promote(Node("a", EMPTY, is_cut=True), Node("c", EMPTY), candidate=NEW)
    with pytest.raises(CannotPromote, match="Promote c"):
        promote(Node("a", EMPTY), Node("c", LogPlace(1, 200)), candidate=NEW)


class Service(Node):
    """Hands over when it is asked to."""

    def __init__(self, name: str, *, refuses: bool = False) -> None:
        super().__init__(name, role="primary")
        self.refuses = refuses

    async def make_promise(self, given: PromiseInput) -> NodePromise:
        answer = await self.get_promise()
        answer.granted, answer.reason = given.hand_over and not self.refuses, "it is the service"
        if answer.granted:
            self.role, self.promise = "replica", Promise(given.epoch, given.node)
        return answer


def take_over(*others: Node, ends: Callable[[NodePromise], bool] = lambda _: True) -> list[str]:
    """Roles of the others behind it. Raises CannotPromote."""

    async def main() -> list[str]:
        quorum = Quorum(THREE, others)
        heard = await quorum.take_over(B, await quorum.ask(), ends=ends)
        return [one.answer.role if one.answer else one.problem for one in heard]

    return asyncio.run(main())


def test_the_service_that_runs_hands_over_and_no_other_node_is_asked_to():
    a, c = Service("a"), Node("c", promise=Promise(2_000, "a"))
    assert take_over(a, c) == ["replica", "replica"]
    assert a.promise == Promise(3_000, "b"), "later than any promise"
    assert c.promise == Promise(2_000, "a")
    assert take_over(Node("a", is_cut=True), c) == ["the link is cut", "replica"]


def test_a_service_that_is_to_go_on_is_not_asked():
    a = Service("a")
    assert take_over(a, Node("c"), ends=lambda one: one.last_epoch == 2) == ["primary", "replica"]
    assert take_over(a, Node("c"), ends=lambda one: one.last_epoch == 3) == ["replica", "replica"]


def test_no_service_stops_for_a_candidate_that_another_node_keeps_from_going_further():
    """It would have promised to follow that one alone."""
    earlier = Service("a")
    with pytest.raises(CannotPromote, match="c runs as the service"):
        take_over(earlier, Node("c", role="primary"), ends=lambda one: one.node == "a")
    with pytest.raises(CannotPromote, match="c is starting"):
        take_over(earlier, Node("c", None))
    assert (earlier.role, earlier.promise) == ("primary", Promise())


def test_a_service_that_does_not_hand_over_says_why():
    with pytest.raises(CannotPromote, match="a does not hand over: it is the service"):
        take_over(Service("a", refuses=True), Node("c"))


def test_a_service_that_is_lost_while_it_hands_over_is_one_that_does_not_answer():
    class Lost(Service):
        async def make_promise(self, given: PromiseInput) -> NodePromise:
            self.is_cut = True
            raise NoAnswer("it is gone")

    assert take_over(Lost("a"), Node("c")) == ["the link is cut", "replica"]


def test_a_promotion_that_asks_no_one_is_later_than_the_own_promise():
    assert asyncio.run(claim_alone(B.place, Promise(2_005, "x"))) == Promise(3_005)
    assert asyncio.run(claim_alone(B.place, Promise())) == Promise(1_003)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"nodes": ("a", "a")}, "each of them once"),
        ({"nodes": ("a", "")}, "each of them once"),
        ({"nodes": ("b", "c")}, "nodes does not have a"),
        ({"nodes": ("a",), "copies": 2, "ha_host": "127.0.0.1"}, "copies must be at most that"),
        ({"nodes": ("a", "b", "c"), "max_replicas": 1}, "max_replicas allow it"),
    ],
)
def test_nodes_that_cannot_be_are_refused(given, reason):
    with pytest.raises(ValueError, match=reason):
        ReplicaOptions(node="a", **given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"rocketmq_peers": ("a:1",)}, "ha_host must be"),
        ({"rocketmq_peers": ("a",), "ha_host": "127.0.0.1"}, "'a' is no host:port"),
        (
            {
                "rocketmq_peers": ("a:1",),
                "ha_host": "127.0.0.1",
                "tls_certificate": "a.pem",
                "tls_key": "a.key",
            },
            "speaks no TLS",
        ),
    ],
)
def test_slaves_of_rocketmq_that_could_not_follow_are_refused(given, reason):
    with pytest.raises(ValueError, match=reason):
        ReplicaOptions(**given)


def test_a_promise_allows_the_primary_that_it_names_and_every_later_one():
    promise = Promise(5, "a")
    assert promise.allows(5, "a")
    assert promise.allows(6, "b")
    assert not promise.allows(5, "b")
    assert not promise.allows(4, "a")
    assert Promise().allows(0, "")
