"""Makes a replica the primary once enough nodes have promised to follow no earlier one.

A person calls for it, or a replica does (`failover.py`); nothing in it is decided by a clock.
Source: the vote of Raft (5.2, 5.4.1).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from msgspec import UNSET

from app.fencing.schemas import NodePromise, PromiseInput
from app.replicas.options import ReplicaOptions
from app.replicas.promise import CannotPromote, LogPlace, Promise, promises_needed
from storage.formats.epochs import EPOCHS_OF_A_PROMOTION

_EMPTY = LogPlace(0, 0)


class NoAnswer(Exception):
    """A node did not answer, or not as a node does."""


class OtherNode(Protocol):
    """Another node of the service, by its URL."""

    @property
    def url(self) -> str: ...

    async def get_promise(self) -> NodePromise:
        """Raises NoAnswer."""

    async def make_promise(self, given: PromiseInput) -> NodePromise:
        """Raises NoAnswer."""


class Candidate(NamedTuple):
    """The node that is to be the primary."""

    node: str
    place: LogPlace
    promised: Promise


class Heard(NamedTuple):
    """The answer of another node, or why there is none."""

    url: str
    answer: NodePromise | None
    problem: str = ""


class Quorum:
    """The other nodes of a service, and how many of them must promise."""

    def __init__(self, options: ReplicaOptions, others: Sequence[OtherNode]) -> None:
        self._nodes = frozenset(options.nodes)
        self._own = options.node_name
        self._others = others
        # the candidate itself is one of them
        self.needed = promises_needed(len(options.nodes), options.copies) - 1
        self._copies = options.copies

    async def ask(self) -> list[Heard]:
        """How far each of them is; it changes nothing."""
        return await asyncio.gather(*[self._hear(one, None) for one in self._others])

    def epoch_for(self, candidate: Candidate, heard: Sequence[Heard]) -> int:
        """The epoch to begin in. Raises CannotPromote where it may not, by what was heard."""
        self._check(candidate, self._counted(heard))
        return self._next_epoch(candidate, heard)

    async def take_over(
        self,
        candidate: Candidate,
        heard: list[Heard],
        *,
        ends: Callable[[NodePromise], bool],
        check: Callable[[list[Heard]], None] = lambda _: None,
    ) -> list[Heard]:
        """Have a service that runs stop, where `ends` says so of it, and promise to follow the
        candidate, which has all of its log then. What the others say after it; `heard` itself where
        there is none.

        Raises CannotPromote. `check` may raise it before any stops: one that has stopped for a
        candidate that goes no further can follow no earlier service.
        """
        answers = self._counted(heard)
        ending = {one.node for one in answers.values() if one.role == "primary" and ends(one)}
        if not ending:
            return heard
        for one in answers.values():
            if one.node not in ending:
                _place_of(one)
        check(heard)
        urls = {one.url for one in heard if one.answer is not None and one.answer.node in ending}
        given = PromiseInput(
            epoch=self._next_epoch(candidate, heard), node=candidate.node, hand_over=True
        )
        for node in self._others:
            if node.url not in urls:
                continue
            answer = (await self._hear(node, given)).answer
            if answer is not None and not answer.granted:
                raise CannotPromote(f"{answer.node} does not hand over: {answer.reason}")
        return await self.ask()

    def _next_epoch(self, candidate: Candidate, heard: Sequence[Heard]) -> int:
        """A later one than any node is in, or has promised."""
        latest = max(
            candidate.place.last_epoch,
            candidate.promised.epoch,
            *[max(one.epoch, one.last_epoch or 0) for one in self._counted(heard).values()],
        )
        return latest + EPOCHS_OF_A_PROMOTION

    def check_loss(self, heard: Sequence[Heard]) -> None:
        """Is the service lost to the others, too, and could this node go on with them?

        Raises CannotPromote.
        """
        answers = self._counted(heard).values()
        for one in answers:
            if one.connected:
                raise CannotPromote(f"{one.node} is connected to the service")
        if len(answers) < self._copies - 1:
            raise CannotPromote(
                f"{len(answers)} of the other nodes answer: too few to have {self._copies} copies"
            )

    def before(self, candidate: Candidate, heard: Sequence[Heard]) -> list[str]:
        """Replicas that are to try before it, where several are as far: by their names."""
        return sorted(
            one.node
            for one in self._counted(heard).values()
            if one.role == "replica"
            and one.node < candidate.node
            and (one.last_epoch, one.end_offset) == candidate.place
        )

    def left_out(self, heard: Sequence[Heard], epoch: int) -> list[str]:
        """Replicas that may not follow a service of this epoch: they have promised a later one."""
        return [
            one.node
            for one in self._counted(heard).values()
            if one.role == "replica" and one.epoch > epoch and not one.connected
        ]

    async def claim(self, place: LogPlace, promised: Promise, *, heard: Sequence[Heard]) -> Promise:
        """Promises for this node of those that were heard: the epoch to begin in. `place`: of its
        log; `promised`: by itself.

        Raises CannotPromote.
        """
        candidate = Candidate(self._own, place, promised)
        epoch = self.epoch_for(candidate, heard)
        await self.fence(candidate, epoch, heard)
        return Promise(epoch, self._own)

    async def fence(self, candidate: Candidate, epoch: int, heard: Sequence[Heard]) -> None:
        """Have those that have answered promise to follow no earlier primary.

        Raises CannotPromote.
        """
        given = PromiseInput(epoch=epoch, node=candidate.node)
        there = {one.url for one in self._of_nodes(heard)}
        asked = [self._hear(one, given) for one in self._others if one.url in there]
        answers = await asyncio.gather(*asked)
        for one in answers:
            if one.answer is not None and not one.answer.granted:
                raise CannotPromote(f"{one.answer.node} does not promise: {one.answer.reason}")
        self._check(candidate, self._counted(answers))

    def _counted(self, heard: Sequence[Heard]) -> dict[str, NodePromise]:
        """Answers by the names of the nodes: one that answers at two URLs has one disk."""
        return {one.answer.node: one.answer for one in self._of_nodes(heard) if one.answer}

    def _of_nodes(self, heard: Sequence[Heard]) -> list[Heard]:
        """The answers of nodes of this service, without those of other services: a name server may
        be one.
        """
        others = self._nodes - {self._own}
        return [one for one in heard if one.answer is not None and one.answer.node in others]

    def _check(self, candidate: Candidate, answers: dict[str, NodePromise]) -> None:
        """Raises CannotPromote."""
        for one in answers.values():
            place = _place_of(one)
            if place > candidate.place:
                raise CannotPromote(
                    f"the log of {one.node} is the newer one: it ends at {place.end:,} in "
                    f"epoch {place.last_epoch}, that of {candidate.node} at "
                    f"{candidate.place.end:,} in epoch {candidate.place.last_epoch}. Promote "
                    f"{one.node}"
                )
        if candidate.place == _EMPTY and len(answers) < len(self._nodes) - 1:
            raise CannotPromote(
                f"the log of {candidate.node} is empty, and not all other nodes have answered: one "
                "of them could have messages"
            )
        if len(answers) < self.needed:
            raise CannotPromote(
                f"{len(answers)} of the other nodes can promise, {self.needed} must: else the "
                "service could still have a message on enough disks. Start them as replicas"
            )

    async def _hear(self, node: OtherNode, given: PromiseInput | None) -> Heard:
        try:
            answer = await (node.get_promise() if given is None else node.make_promise(given))
        except NoAnswer as error:
            return Heard(node.url, None, str(error))
        return Heard(node.url, answer)


def _place_of(one: NodePromise) -> LogPlace:
    """The end of a replica's log. Raises CannotPromote if the node is not a replica, or is
    starting.
    """
    if one.role == "primary":
        raise CannotPromote(f"{one.node} runs as the service: stop it first")
    if one.last_epoch is UNSET or one.end_offset is UNSET:
        raise CannotPromote(f"{one.node} is starting: try again when its log is open")
    return LogPlace(one.last_epoch, one.end_offset)
