"""Consumer groups over HTTP: make, change, look at, list, delete."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from app import codec, pages
from app.exchange import NO_CONTENT, Call, Reply, reply
from app.groups.schemas import Filter, Group, GroupInput, GroupPage, Subscription, SubscriptionInput
from app.operations import IF_MATCH, WRITING, operation
from app.problems import FieldError, Refusal, differs, invalid_field, refusal_of_field
from app.registry.consumer_groups import ConsumerGroup
from app.services import Services
from app.topics.schemas import PageQuery
from delivery import groups as delivery
from delivery.filters.filters import compile_filter
from storage.errors import MessagingError


@operation(
    "GET",
    "/v1/groups",
    "listGroups",
    tag="groups",
    query=PageQuery,
    answers={200: GroupPage},
    problems=["invalid_page_token"],
)
async def list_(services: Services, _: Call, query: PageQuery) -> Reply:
    """List consumer groups."""
    after = "" if query.page_token is UNSET else pages.decode_token("groups", query.page_token)
    found = [group for group in services.consumer_groups.all() if group.name > after]
    count = pages.fitting(found, query.page_size, _size_of)
    page = GroupPage(items=[_view(group) for group in found[:count]])
    if len(found) > count:
        page.next_page_token = pages.encode_token("groups", page.items[-1].group)
    return reply(200, page)


@operation(
    "PUT",
    "/v1/groups/{group}",
    "putGroup",
    tag="groups",
    body=GroupInput,
    example={
        "topics": [{"topic": "orders", "filter": {"kind": "tag", "expression": "created || paid"}}]
    },
    body_is_optional=True,
    answer_headers=["ETag"],
    answers={201: Group, 200: Group},
    headers=[IF_MATCH],
    problems=[
        "topic_not_found",
        "reserved_topic",
        "filter_conflict",
        "revision_mismatch",
        *WRITING,
    ],
)
async def put(services: Services, call: Call, name: str, given: GroupInput) -> Reply:
    """Create or update a consumer group.

    Omitted fields keep their value. To change the filter or the start of a topic that the group
    reads, or to end a subscription, send `If-Match`; otherwise 409. With `If-Match` the body
    replaces all settings.
    """
    services.consumer_groups.check_name(name)

    def new_rules(known: ConsumerGroup | None) -> delivery.GroupRules:
        call.check_if_match(None if known is None else known.revision)
        if known is None or "if-match" in call.headers:
            return _rules(services, given, delivery.GroupRules())
        _check_conflicts(given, known.rules)
        return _rules(services, given, known.rules)

    # The positions first: a group that could receive before it has them would start with its whole
    # history.
    async with services.topics.using(
        [] if given.topics is UNSET else {one.topic for one in given.topics}
    ):
        group, is_new = await services.consumer_groups.put(
            name, new_rules, begin=lambda rules: services.delivery.begin(name, rules)
        )
    return _answer(group, status=201 if is_new else 200)


@operation(
    "GET",
    "/v1/groups/{group}",
    "getGroup",
    tag="groups",
    answer_headers=["ETag"],
    answers={200: Group},
    problems=["group_not_found", "reserved_topic"],
)
async def get(services: Services, _: Call, name: str) -> Reply:
    """Get a consumer group."""
    return _answer(services.consumer_groups.get(name))


def _size_of(group: ConsumerGroup) -> int:
    """About how many bytes the group takes in a page."""
    return sum(len(one.topic) + len(one.expression) for one in group.rules.subscriptions)


@operation(
    "DELETE",
    "/v1/groups/{group}",
    "deleteGroup",
    tag="groups",
    answers={204: None},
    headers=[IF_MATCH],
    problems=["group_not_found", "reserved_topic", "revision_mismatch", *WRITING],
)
async def delete(services: Services, call: Call, name: str) -> Reply:
    """Delete a consumer group.

    Ends its leases and retries, and deletes its offsets and dead letters. The messages of its
    topics stay.
    """
    # The registry first: a group that had lost its positions would be handed everything again.
    await services.consumer_groups.delete(
        name, check=call.check_if_match, end=lambda: services.delivery.delete(name)
    )
    return NO_CONTENT


def _rules(services: Services, given: GroupInput, old: delivery.GroupRules) -> delivery.GroupRules:
    """The rules with the fields that are given. Raises Refusal."""
    fields = {
        name: value
        for name, value in msgspec.structs.asdict(given).items()
        if value is not UNSET and name != "topics"
    }
    if given.topics is not UNSET:
        subscribed = {one.topic for one in old.subscriptions}
        named = _subscriptions(services, given.topics)
        fields["subscriptions"] = (
            *old.subscriptions,
            *(one for one in named if one.topic not in subscribed),
        )
    return msgspec.convert(
        msgspec.to_builtins(old) | msgspec.to_builtins(fields), delivery.GroupRules
    )


def _check_conflicts(given: GroupInput, old: delivery.GroupRules) -> None:
    """Raise Refusal where the request would change what the consumers of the group get from topics
    that it reads.
    """
    conflicts: list[FieldError] = []
    subscribed = {one.topic: one for one in old.subscriptions}
    for index, one in enumerate([] if given.topics is UNSET else given.topics):
        known = subscribed.pop(one.topic, None)
        if (
            known is None
            or one.filter is UNSET
            or (one.filter.kind, one.filter.expression) == known[1:]
        ):
            continue
        old_filter = {"kind": known.kind, "expression": known.expression}
        conflicts.append(
            differs(f"/topics/{index}/filter", old_filter, one.filter, code="filter_conflict")
        )
    if given.topics is not UNSET:
        conflicts += [
            differs("/topics", topic, None, code="filter_conflict") for topic in subscribed
        ]
    if old.subscriptions and given.start is not UNSET and given.start != old.start:
        conflicts.append(differs("/start", old.start, given.start, code="filter_conflict"))
    if conflicts:
        raise Refusal(
            "filter_conflict",
            "without If-Match a PUT changes no filter and no start, and ends no subscription",
            errors=conflicts,
        )


def _subscriptions(
    services: Services, given: Sequence[SubscriptionInput]
) -> list[delivery.Subscription]:
    """Raises Refusal."""
    found: dict[str, delivery.Subscription] = {}
    for index, one in enumerate(given):
        try:
            services.topics.get(one.topic)
        except MessagingError as error:
            raise refusal_of_field(error, f"/topics/{index}/topic") from error
        if one.topic in found:
            raise invalid_field(
                f"/topics/{index}/topic", "not_allowed", f"topic {one.topic} stands twice"
            )
        if one.filter is UNSET:
            found[one.topic] = delivery.Subscription(one.topic)
            continue
        compile_filter(
            one.filter.kind, one.filter.expression, pointer=f"/topics/{index}/filter/expression"
        )
        found[one.topic] = delivery.Subscription(one.topic, one.filter.kind, one.filter.expression)
    return list(found.values())


def _answer(group: ConsumerGroup, *, status: int = 200) -> Reply:
    return reply(status, _view(group), {"ETag": f'"{group.revision}"'})


def _view(group: ConsumerGroup) -> Group:
    rules = group.rules
    return Group(
        group=group.name,
        topics=[
            Subscription(topic=one.topic, filter=Filter(kind=one.kind, expression=one.expression))
            for one in rules.subscriptions
        ],
        start=rules.start.value,
        lease_ms=rules.lease_ms,
        max_attempts=rules.max_attempts,
        backoff_ms=list(rules.backoff_ms),
        dead_letter=rules.dead_letter,
        ordered=rules.ordered,
        skip_lag_over=UNSET if rules.skip_lag_over is None else rules.skip_lag_over,
        skip_older_than_ms=UNSET if rules.skip_older_than_ms is None else rules.skip_older_than_ms,
        created_at=codec.rfc3339(group.created_at_ms),
        revision=group.revision,
    )
