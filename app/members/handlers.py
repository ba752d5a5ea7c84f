"""Members of consumer groups over HTTP: join, heartbeat, leave, list; locks of queues."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec
from msgspec import UNSET

from app.encoding import codec, pages
from app.groups.offsets import checked_offsets, position_of
from app.groups.subscriptions import other_filters, other_start, start_at_ms, subscriptions_of
from app.http.exchange import NO_CONTENT, Call, Reply, reply
from app.members.schemas import (
    Heartbeat,
    HeartbeatInput,
    JoinInput,
    LockResult,
    LocksInput,
    Member,
    MemberList,
    MemberQueue,
    Membership,
    OwnedQueue,
    QueueName,
    QueueOfTopic,
    RefusedLock,
    UnlockResult,
)
from app.messages.payload import check_text
from app.operations import WRITING, operation
from app.problems import Refusal, invalid_field, refusal_of_field
from app.registry.consumer_groups import ConsumerGroup, again_if_deleted
from app.registry.topics import Topic
from app.services import Services
from app.topics.schemas import PageQuery
from delivery.groups import GroupRules, Start
from delivery.members import service as delivery
from delivery.members.assignment import Strategy
from delivery.members.events import Joined
from delivery.members.table import GroupMembers
from storage.errors import MessagingError, UnknownQueue, UnknownTopic
from storage.message import QueueId

_AT_ONCE = 256  # queues that are looked at: some 2 ms
_QUEUE_BYTES = 100  # of a queue in a page
_MEMBER = "mem_rJZHZGfSqG0AAAAAAAAAAA"


@operation(
    "POST",
    "/v1/groups/{group}/members",
    "joinGroup",
    tag="members",
    scopes=["receive"],
    body=JoinInput,
    example={"client_id": "billing-7f", "topics": [{"topic": "orders"}], "strategy": "average"},
    answers={201: Membership},
    problems=["reserved_topic", "filter_conflict", "group_active", *WRITING],
    send_once=True,
)
async def join(services: Services, _: Call, name: str, given: JoinInput) -> Reply:
    """Join a consumer group as a member, and own queues of its topics.

    Creates the group if necessary, and adds topics that it does not read. The members share the
    queues; each reads its own with pull requests, and commits offsets. While a group has members,
    its messages are not leased.
    """
    services.consumer_groups.check_name(name)
    _check_topics(services, given)

    async def enter() -> tuple[delivery.JoinRequest, delivery.Membership]:
        known = services.consumer_groups.find(name)
        request = _request(services, given, GroupRules() if known is None else known.rules)
        # Before the group is created or changed: a join that is refused leaves nothing behind.
        services.members.check_join(name, request)
        services.consumer_groups.check_not_pushed(name)
        if known is not None:
            await services.members.check_not_leased(name)
        await services.consumer_groups.put(
            name,
            lambda group: _rules(services, given, group),
            begin=lambda rules: services.delivery.begin(name, rules),
        )
        return request, await services.members.join(name, request)

    async with services.topics.using({one.topic for one in given.topics}):
        request, found = await again_if_deleted(enter)
    services.members.share_soon()  # where topics of other members were added
    client_id = given.client_id if given.broadcast else None
    return reply(
        201,
        Membership(
            member_id=found.member_id,
            generation=found.generation,
            heartbeat_interval_ms=delivery.heartbeat_interval_ms(request.session_timeout_ms),
            expires_at=codec.rfc3339(services.wall_of(found.expires_ms)),
            assignment=await _owned(services, name, found.owned, client_id),
        ),
    )


@operation(
    "GET",
    "/v1/groups/{group}/members",
    "listMembers",
    tag="members",
    scopes=["receive"],
    query=PageQuery,
    answers={200: MemberList},
    problems=["group_not_found", "reserved_topic", "invalid_page_token"],
)
async def list_(services: Services, _: Call, name: str, query: PageQuery) -> Reply:
    """List the members of a consumer group, in the order in which they joined."""
    services.consumer_groups.get(name)
    members = services.members.of_group(name)
    after = "" if query.page_token is UNSET else pages.decode_token("members", query.page_token)
    # their ids begin with the time
    found = sorted(member_id for member_id in members.members if member_id > after)
    count = pages.fitting(found, query.page_size, lambda one: _size_of(members, one))
    page = MemberList(generation=members.generation, items=[])
    for member_id in found[:count]:
        member = members.members.get(member_id)
        queues = [
            await _member_queue(services, member, queue)
            async for queue in _in_turns(members.owned.get(member_id, ()))
            if member is not None
        ]
        # it may have left meanwhile, and the group may have been deleted
        if member is not None and member_id in services.members.of_group(name).members:
            page.items.append(_member(services, member, queues))
    if len(found) > count:
        page.next_page_token = pages.encode_token("members", found[count - 1])
    return reply(200, page)


@operation(
    "POST",
    "/v1/groups/{group}/members/{member_id}/heartbeat",
    "heartbeatMember",
    tag="members",
    scopes=["receive"],
    body=HeartbeatInput,
    example={
        "generation": 1,
        "wait_ms": 0,
        "offsets": [{"topic": "orders", "queue_id": 0, "offset": 1}],
    },
    answers={200: Heartbeat},
    problems=[
        "group_not_found",
        "member_not_found",
        "topic_not_found",
        "queue_not_found",
        "offset_beyond_end",
        "offset_expired",
        "reserved_topic",
        "too_many_waiting",
        *WRITING,
    ],
)
async def heartbeat(
    services: Services, call: Call, group: str, member_id: str, given: HeartbeatInput
) -> Reply:
    """Keep the session of a member, commit offsets, and get its assignment.

    The offsets are durable when the response is sent. With `wait_ms` the response waits for an
    assignment that is newer than `generation`.
    """
    services.consumer_groups.get(group)
    member = services.members.of_group(group).get(member_id)
    lost: list[QueueId] = []
    if given.offsets:
        wanted = await checked_offsets(services, given.offsets)
        lost = await services.members.offsets.commit_owned(
            group, member_id, given.generation, wanted
        )
    # before the wait, for which there may be no place: a member that is refused it is alive
    generation = services.members.keep_session(group, member_id)
    if given.wait_ms and generation == given.generation:
        async with services.long_poll(call):
            found = await services.members.heartbeat(
                group, member_id, given.generation, wait_ms=given.wait_ms
            )
    else:
        found = await services.members.heartbeat(group, member_id, given.generation, wait_ms=0)
    client_id = member.client_id if member.is_broadcast else None
    return reply(
        200,
        Heartbeat(
            generation=found.generation,
            assignment=await _owned(services, group, found.owned, client_id),
            revoked=_views(found.revoked),
            refused=_views(lost) if lost else UNSET,
            expires_at=codec.rfc3339(services.wall_of(found.expires_ms)),
        ),
    )


@operation(
    "DELETE",
    "/v1/groups/{group}/members/{member_id}",
    "leaveGroup",
    tag="members",
    scopes=["receive"],
    answers={204: None},
    problems=["group_not_found", "member_not_found", "reserved_topic", *WRITING],
)
async def leave(services: Services, _: Call, group: str, member_id: str) -> Reply:
    """Leave a consumer group. The member's queues go to the others at once, its locks are free."""
    services.consumer_groups.get(group)
    await services.members.leave(group, member_id)
    return NO_CONTENT


@operation(
    "POST",
    "/v1/groups/{group}/locks",
    "lockQueues",
    tag="members",
    scopes=["receive"],
    body=LocksInput,
    example={"member_id": _MEMBER, "queues": [{"topic": "orders", "queue_id": 0}]},
    answers={200: LockResult},
    problems=["group_not_found", "member_not_found", "fenced", "reserved_topic", *WRITING],
)
async def lock(services: Services, _: Call, group: str, given: LocksInput) -> Reply:
    """Lock queues that the member owns, or renew their locks.

    For consumers that process a queue in order: a queue that another member has locked, and may be
    at work on, is refused until that one gives it back or its lock expires.
    """
    queues = _queues_of_member(services, group, given)
    generation = None if given.generation is UNSET else given.generation
    found = await services.members.lock(group, given.member_id, queues, generation)
    return reply(
        200,
        LockResult(
            locked=_views(found.locked),
            refused=[
                RefusedLock(topic=queue.topic, queue_id=queue.number, owner=owner)
                for queue, owner in found.refused.items()
            ],
            lock_expires_at=codec.rfc3339(services.wall_of(found.expires_ms)),
        ),
    )


@operation(
    "POST",
    "/v1/groups/{group}/locks/release",
    "unlockQueues",
    tag="members",
    scopes=["receive"],
    body=LocksInput,
    example={"member_id": _MEMBER, "queues": [{"topic": "orders", "queue_id": 0}]},
    answers={200: UnlockResult},
    problems=["group_not_found", "member_not_found", "reserved_topic", *WRITING],
)
async def unlock(services: Services, _: Call, group: str, given: LocksInput) -> Reply:
    """Give back locks of queues. Queues that the member has not locked are passed over."""
    queues = _queues_of_member(services, group, given)
    released = await services.members.unlock(group, given.member_id, queues)
    return reply(200, UnlockResult(released=_views(released)))


def _queues_of_member(services: Services, group: str, given: LocksInput) -> list[QueueId]:
    """Raises UnknownGroup, UnknownMember, Refusal, in this order."""
    services.consumer_groups.get(group)
    services.members.of_group(group).get(given.member_id)
    return _queues(services, given.queues)


# --------------------------------------------------------------------------------------------------
# a join


def _check_topics(services: Services, given: JoinInput) -> None:
    """Raise Refusal where a topic does not exist, or cannot."""
    for index, one in enumerate(given.topics):
        _topic(services, one.topic, f"/topics/{index}/topic")


def _request(services: Services, given: JoinInput, rules: GroupRules) -> delivery.JoinRequest:
    """Raises Refusal."""
    is_manual = given.strategy == "manual"
    if is_manual != (given.queues is not UNSET):
        code, verb = ("missing", "are needed") if is_manual else ("not_allowed", "are only allowed")
        raise invalid_field("/queues", code, f"queues {verb} with strategy manual")
    if given.room is not UNSET and given.strategy != "machine_room":
        raise invalid_field(
            "/room", "not_allowed", "room is only allowed with strategy machine_room"
        )
    named = () if given.queues is UNSET else tuple(_queues(services, given.queues))
    topics = tuple(dict.fromkeys(one.topic for one in given.topics))
    for index, queue in enumerate(named):
        if queue.topic not in topics:
            raise invalid_field(
                f"/queues/{index}/topic", "not_allowed", f"/topics does not list {queue.topic}"
            )
    return delivery.JoinRequest(
        client_id=check_text(given.client_id, "/client_id"),
        topics=topics,
        session_timeout_ms=(
            rules.session_timeout_ms
            if given.session_timeout_ms is UNSET
            else given.session_timeout_ms
        ),
        strategy=Strategy(given.strategy),
        is_broadcast=given.broadcast,
        named=named,
        room=None if given.room is UNSET else check_text(given.room, "/room"),
    )


def _rules(services: Services, given: JoinInput, known: ConsumerGroup | None) -> GroupRules:
    """The group's rules, with the topics that it does not read yet. Raises Refusal."""
    old = GroupRules() if known is None else known.rules
    conflicts = other_filters(given.topics, old)
    if known is not None:
        conflicts += other_start(given.start, given.start_at, old)
    elif given.start is not UNSET or given.start_at is not UNSET:
        at_ms = start_at_ms(given.start, given.start_at)
        start = Start.EARLIEST if given.start is UNSET else Start(given.start)
        old = msgspec.structs.replace(old, start=start, start_at_ms=at_ms)
    if conflicts:
        raise Refusal(
            "filter_conflict", "the group has another filter or another start", errors=conflicts
        )
    subscribed = {one.topic for one in old.subscriptions}
    new = [one for one in subscriptions_of(services, given.topics) if one.topic not in subscribed]
    return msgspec.structs.replace(old, subscriptions=(*old.subscriptions, *new))


def _queues(services: Services, given: Sequence[QueueName]) -> list[QueueId]:
    """Raises Refusal."""
    found = []
    for index, one in enumerate(given):
        topic = _topic(services, one.topic, f"/queues/{index}/topic")
        try:
            found.append(topic.queue(one.queue_id))
        except UnknownQueue as error:
            raise invalid_field(
                f"/queues/{index}/queue_id", "queue_not_found", error.detail
            ) from error
    return found


def _topic(services: Services, name: str, pointer: str) -> Topic:
    """The topic that a field names. Raises Refusal."""
    try:
        return services.topics.get(name)
    except UnknownTopic as error:
        raise invalid_field(pointer, "topic_not_found", error.detail) from error
    except MessagingError as error:
        raise refusal_of_field(error, pointer) from error


# --------------------------------------------------------------------------------------------------
# views


def _size_of(members: GroupMembers, member_id: str) -> int:
    """About how many bytes the member takes in a page."""
    return _QUEUE_BYTES * (1 + len(members.owned.get(member_id, ())))


async def _in_turns(queues: Iterable[QueueId]) -> AsyncIterator[QueueId]:
    """The queues, of which a member may have thousands; others have their turn in between."""
    for index, queue in enumerate(queues):
        if index % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        yield queue


def _views(queues: Iterable[QueueId]) -> list[QueueOfTopic]:
    return [QueueOfTopic(topic=queue.topic, queue_id=queue.number) for queue in queues]


async def _owned(
    services: Services, group: str, queues: Iterable[QueueId], client_id: str | None
) -> list[OwnedQueue]:
    """`client_id`: of a member of a broadcast group."""
    return [
        OwnedQueue(
            topic=queue.topic,
            queue_id=queue.number,
            offset=(await _place(services, group, queue, client_id))[0],
        )
        async for queue in _in_turns(queues)
    ]


async def _place(
    services: Services, group: str, queue: QueueId, client_id: str | None
) -> tuple[int, int]:
    """(the next offset to read, the end of the queue); (0, 0) where the topic was deleted."""
    try:
        bounds = await services.store.offsets(queue)
    except UnknownTopic:
        return 0, 0
    committed = await position_of(services, group, queue, client_id)
    return max(bounds.first, committed or 0), bounds.end


def _member(services: Services, member: Joined, queues: list[MemberQueue]) -> Member:
    members = services.members
    return Member(
        member_id=member.member_id,
        client_id=member.client_id,
        joined_at=codec.rfc3339(member.at_ms),
        last_heartbeat_at=codec.rfc3339(members.heard_at_ms(member.member_id)),
        expires_at=codec.rfc3339(
            services.wall_of(members.expires_ms(member.group, member.member_id))
        ),
        strategy=member.strategy.value,
        broadcast=member.is_broadcast,
        room=UNSET if member.room is None else member.room,
        assignment=queues,
        lag=sum(queue.lag for queue in queues),
    )


async def _member_queue(services: Services, member: Joined, queue: QueueId) -> MemberQueue:
    client_id = member.client_id if member.is_broadcast else None
    offset, end = await _place(services, member.group, queue, client_id)
    locks = services.members.of_group(member.group).locks
    return MemberQueue(
        topic=queue.topic,
        queue_id=queue.number,
        locked=locks.get(queue) == member.member_id,
        offset=offset,
        lag=max(0, end - offset),
    )
