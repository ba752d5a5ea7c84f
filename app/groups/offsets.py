"""Offsets of a consumer group: get, commit, reset; and how far it is behind.

Durable when answered.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET

from app.encoding import codec
from app.groups.schemas import (
    GroupOffset,
    GroupOffsetList,
    Lag,
    OffsetInput,
    OffsetsInput,
    OffsetsQuery,
    QueueLag,
    QueueReset,
    ResetInput,
    ResetResult,
)
from app.http.exchange import Call, Reply, reply
from app.operations import WRITING, operation
from app.problems import invalid_field, refusal_of_field
from app.registry.consumer_groups import again_if_deleted
from app.registry.topics import Topic
from app.services import Services
from delivery.offset_by_time import find_offset_by_time
from delivery.positions import positions
from storage.errors import MessagingError, OffsetBeyondEnd, OffsetExpired
from storage.formats import names
from storage.message import QueueId


@operation(
    "GET",
    "/v1/groups/{group}/lag",
    "getGroupLag",
    tag="groups",
    scopes=["receive", "operate"],
    answers={200: Lag},
    problems=["group_not_found", "reserved_topic"],
)
async def lag(services: Services, _: Call, name: str) -> Reply:
    """Get the lag of a group: messages ready, leased and waiting for a retry."""
    rules = services.consumer_groups.get(name).rules
    found, waiting = await services.delivery.lag(name, rules)
    now_ms = services.clock.wall_ms()
    queues = [
        _queue_lag(one, now_ms)
        for one in found
        if one.end or one.queue.topic != names.retry_topic(name)
    ]
    ages = [one.oldest_ready_age_ms for one in queues if one.oldest_ready_age_ms is not UNSET]
    return reply(
        200,
        Lag(
            messages_ready=sum(one.messages_ready for one in queues),
            messages_leased=sum(one.messages_leased for one in queues),
            messages_waiting=waiting + sum(one.messages_waiting for one in queues),
            messages_skipped=sum(one.messages_skipped for one in queues),
            messages_damaged=sum(one.messages_damaged for one in queues),
            dead_letters=services.delivery.dead_letters.count_kept(name),
            oldest_ready_age_ms=max(ages) if ages else UNSET,
            queues=queues,
        ),
    )


@operation(
    "GET",
    "/v1/groups/{group}/offsets",
    "getOffsets",
    tag="offsets",
    scopes=["receive", "operate"],
    query=OffsetsQuery,
    answers={200: GroupOffsetList},
    problems=["group_not_found", "topic_not_found", "member_not_found", "reserved_topic"],
)
async def get_offsets(services: Services, _: Call, group: str, query: OffsetsQuery) -> Reply:
    """Get the offsets of a group in each queue. Every message below the offset is settled."""
    services.consumer_groups.get(group)
    client_id = None
    if query.member_id is not UNSET:
        services.members.of_group(group).get(query.member_id)
        client_id = _client_of(services, group, query.member_id)
    topic = query.topic
    if topic is UNSET:
        known = {one.name for one in services.topics.all()}
        found = (
            services.delivery.positions_of(group)
            if client_id is None
            else services.members.offsets.queues_of(group, client_id)
        )
        queues = sorted(queue for queue in found if queue.topic in known)
    else:
        queues = list(await services.store.queues(services.topics.get(topic).name))
    return reply(200, GroupOffsetList(items=await _view(services, group, queues, client_id)))


@operation(
    "PUT",
    "/v1/groups/{group}/offsets",
    "commitOffsets",
    tag="offsets",
    scopes=["receive"],
    body=OffsetsInput,
    example={"offsets": [{"topic": "orders", "queue_id": 0, "offset": 1}]},
    answers={200: GroupOffsetList},
    problems=[
        "topic_not_found",
        "queue_not_found",
        "offset_beyond_end",
        "offset_expired",
        "reserved_topic",
        "fenced",
        "group_active",
        *WRITING,
    ],
)
async def commit_offsets(services: Services, _: Call, group: str, given: OffsetsInput) -> Reply:
    """Commit offsets of a group.

    Creates the group if necessary. The offsets are durable when the response is sent. Leases in
    these queues end. While the group has members, each commits offsets of its own queues alone; in
    a broadcast group these are offsets of its client.
    """
    services.consumer_groups.check_name(group)
    if given.member_id is UNSET and given.generation is not UNSET:
        raise invalid_field(
            "/generation", "not_allowed", "generation is only allowed with member_id"
        )
    wanted = await checked_offsets(services, given.offsets)
    if given.member_id is not UNSET:
        generation = None if given.generation is UNSET else given.generation
        client_id = _client_of(services, group, given.member_id)
        await services.members.offsets.commit(group, given.member_id, generation, wanted)
        return reply(200, GroupOffsetList(items=await _view(services, group, wanted, client_id)))

    async def commit() -> None:
        # Only now, so that a refused request leaves no group behind.
        await services.consumer_groups.create(group)
        await services.delivery.open_group(group)
        await services.members.offsets.unowned(
            group, lambda: services.delivery.set_positions(group, wanted)
        )

    await again_if_deleted(commit)
    return reply(200, GroupOffsetList(items=await _view(services, group, wanted)))


@operation(
    "POST",
    "/v1/groups/{group}/offsets/reset",
    "resetOffsets",
    tag="offsets",
    scopes=["operate"],
    body=ResetInput,
    example={"topic": "orders", "to": "time", "at": "2026-03-01T00:00:00.000Z", "dry_run": True},
    answers={200: ResetResult},
    problems=[
        "group_not_found",
        "topic_not_found",
        "queue_not_found",
        "offset_beyond_end",
        "offset_expired",
        "reserved_topic",
        "group_active",
        *WRITING,
    ],
    send_once=True,
)
async def reset(services: Services, _: Call, group: str, given: ResetInput) -> Reply:
    """Reset the offsets of a group in a topic.

    Ends its leases in the topic and the retries of the topic. `dry_run` shows the effect.
    """
    services.consumer_groups.get(group)
    topic = services.topics.get(given.topic)
    wanted = await _wanted(services, given, topic)
    if given.dry_run:
        effect = _effect(await services.delivery.plan_reset(group, wanted), dry_run=True)
        if services.members.of_group(group).is_in_use:
            effect.note += "; refused while members share the queues of the group"
        return reply(200, effect)
    moves = await services.members.offsets.unowned(
        group, lambda: services.delivery.reset(group, wanted)
    )
    return reply(200, _effect(moves, dry_run=False))


def _queue_lag(one: positions.QueueLag, now_ms: int) -> QueueLag:
    return QueueLag(
        topic=one.queue.topic,
        queue_id=one.queue.number,
        offset=one.offset,
        max_offset=one.end,
        messages_ready=one.ready,
        messages_leased=one.leased,
        messages_waiting=one.waiting,
        messages_skipped=one.skipped,
        messages_damaged=one.damaged,
        oldest_ready_age_ms=UNSET
        if one.oldest_ready_ms is None
        else max(0, now_ms - one.oldest_ready_ms),
    )


async def _wanted(services: Services, given: ResetInput, topic: Topic) -> Mapping[QueueId, int]:
    """The new offset of each queue that the reset is about.

    Raises Refusal, and for an offset that cannot be.
    """
    for field, goes_with in (("at", "time"), ("offset", "offset")):
        is_given = getattr(given, field) is not UNSET
        if is_given != (given.to == goes_with):
            code, verb = (
                ("not_allowed", "is only allowed") if is_given else ("missing", "is needed")
            )
            raise invalid_field(f"/{field}", code, f"{field} {verb} with to={goes_with}")
    if given.to == "offset" and given.queue_id is UNSET:
        raise invalid_field("/queue_id", "missing", "queue_id is needed with to=offset")
    at_ms = 0 if given.at is UNSET else codec.parse_time(given.at, "/at")
    queues = (
        await services.store.queues(topic.name)
        if given.queue_id is UNSET
        else (topic.queue(given.queue_id),)
    )
    wanted = {}
    for queue in queues:
        bounds = await services.store.offsets(queue)
        if given.to == "time":
            wanted[queue] = (await find_offset_by_time(services.store, queue, at_ms))[0]
        elif given.to == "offset":
            wanted[queue] = _within(given.offset or 0, bounds)
        else:
            wanted[queue] = bounds.first if given.to == "earliest" else bounds.end
    return wanted


def _effect(moves: Sequence[positions.Move], *, dry_run: bool) -> ResetResult:
    skipped = sum(move.affected for move in moves if move.to_offset > move.from_offset)
    be, end = ("would be", "would end") if dry_run else ("will be", "ended")
    notes = [
        (sum(move.again for move in moves), "message", f"{be} delivered again"),
        (skipped, "message", f"{be} passed over"),
        (sum(move.leases for move in moves), "open lease", end),
        (sum(move.retries for move in moves), "retry", end),
    ]
    return ResetResult(
        dry_run=dry_run,
        queues=[
            QueueReset(
                queue_id=move.queue.number, from_offset=move.from_offset, to_offset=move.to_offset
            )
            for move in moves
        ],
        messages_affected=sum(move.affected for move in moves),
        already_acked=sum(move.settled for move in moves),
        note=", ".join(f"{_counted(count, what)} {verb}" for count, what, verb in notes if count)
        or "nothing changes",
    )


def _counted(count: int, what: str) -> str:
    return (
        f"{count} {what}"
        if count == 1
        else f"{count} {what.removesuffix('y')}{'ies' if what.endswith('y') else 's'}"
    )


async def checked_offsets(services: Services, given: Sequence[OffsetInput]) -> dict[QueueId, int]:
    """The offsets of a request, by queue. Raises Refusal."""
    wanted: dict[QueueId, int] = {}
    for index, one in enumerate(given):
        try:
            queue = await _checked(services, one)
        except MessagingError as error:
            raise refusal_of_field(error, f"/offsets/{index}") from error
        if queue in wanted:
            raise invalid_field(
                f"/offsets/{index}",
                "not_allowed",
                f"queue {queue.number} of {queue.topic} is listed twice",
            )
        wanted[queue] = one.offset
    return wanted


async def position_of(
    services: Services, group: str, queue: QueueId, client_id: str | None
) -> int | None:
    """The offset that was committed; `client_id`: of a client of a broadcast group."""
    if client_id is None:
        return await services.delivery.position(group, queue)
    return services.members.offsets.get(group, client_id, queue)


def _client_of(services: Services, group: str, member_id: str) -> str | None:
    """The client whose own offsets the member reads and commits; None where they are the
    group's.
    """
    members = services.members.of_group(group)
    member = members.members.get(member_id)
    return member.client_id if member is not None and member.is_broadcast else None


async def _checked(services: Services, given: OffsetInput) -> QueueId:
    queue = services.topics.get(given.topic).queue(given.queue_id)
    _within(given.offset, await services.store.offsets(queue))
    return queue


def _within(offset: int, bounds: tuple[int, int]) -> int:
    if offset > bounds[1]:
        raise OffsetBeyondEnd(requested=offset, available=bounds)
    if offset < bounds[0]:
        raise OffsetExpired(requested=offset, available=bounds)
    return offset


async def _view(
    services: Services, group: str, queues: Iterable[QueueId], client_id: str | None = None
) -> list[GroupOffset]:
    items = []
    for queue in queues:
        offset = await position_of(services, group, queue, client_id)
        if offset is not None:
            bounds = await services.store.offsets(queue)
            items.append(
                GroupOffset(
                    topic=queue.topic,
                    queue_id=queue.number,
                    offset=offset,
                    min_offset=bounds.first,
                    max_offset=bounds.end,
                )
            )
    return items
