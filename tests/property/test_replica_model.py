"""C30: machines that lead, follow, lose their power and are promoted, in any order: no two
histories are ever acknowledged, and nothing that was acknowledged is missing at a later primary.
Also where a primary whose replicas are missing acknowledges alone for a while.

The rules are those of the product: promises, how many are needed, how logs are compared and cut,
which copies make a message safe, and what the entry in the registry allows. What is between them,
the network and the disks, is steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from app.replicas.leader import Leader
from app.replicas.promise import Promise, promises_needed
from storage.formats.epochs import EPOCHS_OF_A_PROMOTION, EpochHistory, common_end
from storage.local.append.copies import Copies
from tests.fault.campaign_size import sized

WALKS = sized(ci=3_000, full=200_000)
STEPS = 120
CRASHES, PROMOTIONS, WRITES = 4, 4, 6

# the first ones are what goes on all the time
KINDS = [
    *(3 * ["copy"] + 2 * ["acknowledge"]),
    *("sync", "write", "promote", "crash", "restart", "stop"),
    *("go_alone", "end_alone", "note_together"),
]

Entry = tuple[int, str]  # epoch, and what was written


@dataclass
class Node:
    """A machine: its disk, and the process on it."""

    name: str
    log: list[Entry] = field(default_factory=list)
    synced: int = 0  # entries
    promise: Promise = field(default_factory=Promise)
    known_safe: int = 0  # noted by what it followed, or by itself
    leads: int = 0  # the epoch, 0: it follows, or waits
    copies: Copies | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The later of two logs is the greater."""
        return (self.log[-1][0] if self.log else 0, len(self.log))

    @property
    def epochs(self) -> EpochHistory:
        return EpochHistory((epoch, offset) for offset, (epoch, _) in enumerate(self.log))


@dataclass(frozen=True)
class Mistake:
    """A rule that is left out."""

    fewer_promises: bool = False
    forgets_promises: bool = False
    leads_with_any_log: bool = False
    counts_old_epochs: bool = False
    counts_page_cache: bool = False
    takes_any_primary: bool = False
    goes_alone_unnoted: bool = False
    goes_alone_after_a_promotion: bool = False
    promotes_beside_one_alone: bool = False
    promotes_unnoted: bool = False
    overlooks_the_noted_epoch: bool = False
    is_together_at_once: bool = False
    is_together_with_what_is_noted: bool = False


AS_BUILT = Mistake()


class TwoHistories(Exception):
    """An acknowledged entry is missing, or another one is in its place."""


class Machines:
    """All nodes of a service, and what was acknowledged."""

    def __init__(
        self, nodes: int, copies: int, randomness: Random, mistake: Mistake, *, degrades: bool
    ) -> None:
        self.degrades = degrades
        self.leader = Leader()
        self.was_alone = 0
        self.nodes = [Node(name) for name in "abcde"[:nodes]]
        self.needed = copies
        self.randomness = randomness
        self.mistake = mistake
        self.acknowledged: list[Entry] = []
        self.left = {"crash": CRASHES, "promote": PROMOTIONS, "write": WRITES}
        self._lead(self.nodes[0], 1)

    def step(self) -> None:
        """Anything that can happen. Raises TwoHistories."""
        kind = self.randomness.choice(KINDS)
        node = self.randomness.choice(self.nodes)
        if kind in self.left and not self.left[kind]:
            return
        getattr(self, f"_{kind}")(node)

    # Each of them is nothing where it cannot happen.

    def _copy(self, node: Node) -> None:
        """It takes one more entry of some primary, after it has cut what differs."""
        for primary in self._others(node):
            if node.leads or not primary.leads or not self._lets_in(node, primary):
                continue
            node.promise = Promise(primary.leads, primary.name)
            end = common_end(primary.epochs, len(primary.log), node.epochs, len(node.log))
            if end < len(node.log):
                if primary.place[0] <= node.place[0]:
                    continue  # a person decides
                del node.log[end:]
                node.synced = min(node.synced, end)
            if end < len(primary.log):
                node.log.append(primary.log[end])
            return

    def _lets_in(self, node: Node, primary: Node) -> bool:
        if self.mistake.takes_any_primary:
            return True
        return node.promise.allows(primary.leads, primary.name)

    def _acknowledge(self, node: Node) -> None:
        """Its primary hears how far it is."""
        for primary in self._others(node):
            if primary.copies is None or node.leads:
                continue
            if node.promise != Promise(primary.leads, primary.name):
                continue
            end = len(node.log) if self.mistake.counts_page_cache else node.synced
            if node.log[:end] == primary.log[:end]:
                primary.copies.note_other(node.name, end)
                self._note_safe(primary)
                node.known_safe = max(node.known_safe, min(primary.known_safe, node.synced))

    def _sync(self, node: Node) -> None:
        node.synced = len(node.log)
        if node.copies is not None:
            node.copies.note_own(node.synced)
            self._note_safe(node)

    def _write(self, node: Node) -> None:
        if node.leads:
            self.left["write"] -= 1
            node.log.append((node.leads, f"{node.name}{self.left['write']}"))

    def _crash(self, node: Node) -> None:
        """A power cut; a service is started again in the next epoch, or is left to follow."""
        self.left["crash"] -= 1
        epoch, node.leads, node.copies = node.leads, 0, None
        del node.log[node.synced :]
        node.known_safe = self.randomness.randint(0, node.known_safe)  # it is noted now and then
        if epoch and self.randomness.random() < 0.7:
            self._lead(node, max(epoch, node.place[0]) + 1)

    def _stop(self, node: Node) -> None:
        """An orderly stop; a service goes on in the same epoch."""
        epoch, node.leads, node.copies = node.leads, 0, None
        node.synced = len(node.log)
        if epoch and self.randomness.random() < 0.7:
            self._lead(node, epoch)

    def _restart(self, node: Node) -> None:
        """A process is killed: the page cache stays."""
        epoch, node.leads, node.copies = node.leads, 0, None
        if epoch:
            self._lead(node, max(epoch, node.place[0]) + 1)

    def _promote(self, node: Node) -> None:
        """A person promotes it, alone or with a part of the others within reach."""
        if node.leads:
            return
        self.left["promote"] -= 1
        node.synced = len(node.log)
        within_reach = [one for one in self._others(node) if self.randomness.random() < 0.7]
        asked = [one for one in within_reach if not one.leads]
        latest = max(node.place[0], node.promise.epoch, *[0, *[one.promise.epoch for one in asked]])
        if self.randomness.random() < 0.2:
            latest = max(node.place[0], node.promise.epoch)  # it has not heard of a later one
        if not self.mistake.overlooks_the_noted_epoch:
            latest = max(latest, self.leader.epoch)
        epoch = latest + EPOCHS_OF_A_PROMOTION
        needed = promises_needed(len(self.nodes), self.needed)
        needed -= self.mistake.fewer_promises
        promised = [one for one in asked if one.promise.allows(epoch, node.name)]
        for one in promised:
            if not self.mistake.forgets_promises:
                one.promise = Promise(epoch, node.name)
            one.synced = len(one.log)
        is_latest = all(one.place <= node.place for one in promised)
        if len(promised) + 1 >= needed and (is_latest or self.mistake.leads_with_any_log):
            if self.degrades and not self._note_promotion(node, epoch):
                return
            node.promise = Promise(epoch, node.name)
            self._lead(node, epoch)

    def _note_promotion(self, node: Node, epoch: int) -> bool:
        """Enter it in the registry; False where that does not let it lead."""
        noted = self.leader.promoted(epoch, node.name)
        if self.mistake.promotes_beside_one_alone:
            noted = Leader(epoch, node.name)
        if noted is not None and not self.mistake.promotes_unnoted:
            self.leader = noted
        return noted is not None or self.mistake.promotes_unnoted

    def _go_alone(self, node: Node) -> None:
        """Its replicas are missing, for all it knows."""
        if node.copies is None or node.copies.is_alone or not self.degrades:
            return
        noted = self.leader.gone_alone(node.leads, node.name)
        if self.mistake.goes_alone_after_a_promotion:
            noted = Leader(node.leads, node.name, is_alone=True)
        if self.mistake.goes_alone_unnoted:
            noted = self.leader
        if noted is not None:
            self.leader = noted
            node.copies.go_alone()
            self.was_alone += 1
            self._note_safe(node)

    def _end_alone(self, node: Node) -> None:
        """It waits for its replicas again."""
        if node.copies is not None and node.copies.is_alone:
            end = len(node.log)
            if self.mistake.is_together_with_what_is_noted:
                end = 0
            node.copies.end_alone(end)

    def _note_together(self, node: Node) -> None:
        """Its replicas have everything; every other node may lead again."""
        if node.copies is None or node.copies.is_alone:
            return
        if node.copies.is_together or self.mistake.is_together_at_once:
            self.leader = self.leader.together(node.leads, node.name) or self.leader

    def _lead(self, node: Node, epoch: int) -> None:
        node.leads = epoch
        if node.place[0] != epoch:
            node.log.append((epoch, "begins"))
        node.copies = Copies(node.synced, needed=self.needed, safe_end=node.known_safe)
        if not self.mistake.counts_old_epochs:
            node.copies.keep_together(len(node.log))
        if self.leader.is_alone and self.leader.node == node.name:
            self._go_alone(node)
            if self.randomness.random() < 0.5:  # it has other settings by now
                self._end_alone(node)

    def _note_safe(self, primary: Node) -> None:
        """Acknowledge all safe entries, as if consumers read them. Raises TwoHistories."""
        assert primary.copies is not None
        primary.known_safe = primary.copies.safe_end
        shown = primary.log[: primary.known_safe]
        common = min(len(shown), len(self.acknowledged))
        if shown[:common] != self.acknowledged[:common]:
            raise TwoHistories(f"{self.acknowledged} and {shown} of {primary.name}")
        self.acknowledged = max(shown, self.acknowledged, key=len)

    def _others(self, node: Node) -> Iterator[Node]:
        others = [one for one in self.nodes if one is not node]
        self.randomness.shuffle(others)
        return iter(others)


def walk(
    nodes: int, copies: int, seed: int, mistake: Mistake = AS_BUILT, *, degrades: bool = False
) -> Machines:
    machines = Machines(nodes, copies, Random(seed), mistake, degrades=degrades)
    for _ in range(STEPS):
        machines.step()
    return machines


SIZES = [(2, 2), (3, 2), (3, 3), (5, 3), (5, 2)]


@pytest.mark.parametrize(("nodes", "copies"), SIZES)
def test_no_two_histories_are_acknowledged(nodes, copies):
    most = 0
    for seed in range(WALKS):
        most = max(most, len(walk(nodes, copies, seed).acknowledged))
    assert most > WRITES // 2  # the walks come to something


@pytest.mark.parametrize(("nodes", "copies"), [(2, 2), (3, 2), (3, 3)])
def test_no_two_histories_are_acknowledged_where_one_goes_on_alone(nodes, copies):
    most = alone = 0
    for seed in range(WALKS):
        machines = walk(nodes, copies, seed, degrades=True)
        most = max(most, len(machines.acknowledged))
        alone += machines.was_alone
    assert most > WRITES // 2
    assert alone > WALKS  # once in each walk


@pytest.mark.parametrize(
    "mistake",
    [
        "fewer_promises",
        "forgets_promises",
        "leads_with_any_log",
        "counts_old_epochs",
        "counts_page_cache",
        "takes_any_primary",
    ],
)
def test_a_rule_that_is_left_out_is_found(mistake):
    with pytest.raises(TwoHistories):
        find(replace(AS_BUILT, **{mistake: True}), degrades=False)


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize(
    "mistake",
    [
        "goes_alone_unnoted",
        "goes_alone_after_a_promotion",
        "promotes_beside_one_alone",
        "promotes_unnoted",
        "is_together_at_once",
        "is_together_with_what_is_noted",
    ],
)
def test_a_rule_of_being_alone_that_is_left_out_is_found(mistake, nodes):
    with pytest.raises(TwoHistories):
        find(replace(AS_BUILT, **{mistake: True}), degrades=True, nodes=nodes)


def test_a_promotion_in_an_earlier_epoch_than_the_noted_one_is_found():
    with pytest.raises(TwoHistories):
        find(replace(AS_BUILT, overlooks_the_noted_epoch=True), degrades=True, nodes=2)


def find(mistake: Mistake, *, degrades: bool, nodes: int = 3) -> None:
    """Raises TwoHistories."""
    for seed in range(100_000):
        walk(nodes, 2, seed, mistake, degrades=degrades)
