"""Consumer groups over HTTP: create, change, get, list, delete."""

import re
from collections.abc import Mapping

import msgspec
from msgspec import UNSET
from pydantic import SecretStr

from app.encoding import codec, pages
from app.groups.schemas import (
    Filter,
    Group,
    GroupInput,
    GroupPage,
    Push,
    Subscription,
)
from app.groups.subscriptions import other_filters, other_start, start_at_ms, subscriptions_of
from app.http.exchange import NO_CONTENT, Call, Reply, reply
from app.operations import IF_MATCH, WRITING, operation
from app.problems import FieldError, Refusal, differs, invalid_field
from app.registry.consumer_groups import ConsumerGroup
from app.registry.webhook import PushSettings, Webhook
from app.services import Services
from app.topics.schemas import PageQuery
from app.webhooks.secrets import own_secret
from delivery import groups as delivery
from escrowmq_client.webhooks import new_secret

_QUEUE = re.compile(r"[^/]{1,127}/(?:0|[1-9][0-9]{0,3})")
_MAX_ROOM_CHARACTERS = 255


@operation(
    "GET",
    "/v1/groups",
    "listGroups",
    tag="groups",
    scopes=["receive", "operate"],
    checks_access=True,
    query=PageQuery,
    answers={200: GroupPage},
    problems=["invalid_page_token"],
)
async def list_(services: Services, call: Call, query: PageQuery) -> Reply:
    """List consumer groups. A key for some groups gets those."""
    after = "" if query.page_token is UNSET else pages.decode_token("groups", query.page_token)
    found = [
        group
        for group in services.consumer_groups.all()
        if group.name > after and call.access.may_use_group(group.name)
    ]
    count = pages.fitting(found, query.page_size, _size_of)
    page = GroupPage(items=[_view(services, group) for group in found[:count]])
    if len(found) > count:
        page.next_page_token = pages.encode_token("groups", page.items[-1].group)
    return reply(200, page)


@operation(
    "PUT",
    "/v1/groups/{group}",
    "putGroup",
    tag="groups",
    scopes=["receive", "operate"],
    checks_access=True,
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
        "check_conflict",
        "check_url_refused",
        "group_active",
        "revision_mismatch",
        *WRITING,
    ],
)
async def put(services: Services, call: Call, name: str, given: GroupInput) -> Reply:
    """Create or update a consumer group.

    Omitted fields keep their value. To change the filter or the start of a topic that the group
    reads, or to end a subscription, send `If-Match`; otherwise 409. With `If-Match` the body
    replaces all settings.

    With `push`, messages are sent to your endpoint, signed with the `signing_secret` of the
    request. If the request has none, the service makes a secret, and this one response holds it.
    Without `If-Match` the URL of `push` does not change.
    """
    services.consumer_groups.check_name(name)
    for one in () if given.topics is UNSET else given.topics:
        call.access.check_topic(one.topic)
    secret = own_secret(given.signing_secret)
    if given.push is not UNSET:
        await services.signed_post.check_url(given.push.url, what="messages", pointer="/push/url")
    was_secret_made = False

    def new_rules(known: ConsumerGroup | None) -> delivery.GroupRules:
        call.check_conditions(None if known is None else known.revision)
        if known is None or "if-match" in call.headers:
            return _rules(services, given, delivery.GroupRules())
        _check_conflicts(given, known.rules)
        return _rules(services, given, known.rules)

    def new_webhook(known: ConsumerGroup | None) -> Webhook[PushSettings] | None:
        nonlocal was_secret_made
        old = None if known is None else known.webhook
        webhook = _webhook(services, given, old, secret, is_replaced="if-match" in call.headers)
        if webhook is not None and old is None:
            services.members.check_unused(name)
        was_secret_made = webhook is not None and old is None and secret is None
        return webhook

    # The positions first: a group that could receive before it has them would start with its whole
    # history.
    async with services.topics.using(
        [] if given.topics is UNSET else {one.topic for one in given.topics}
    ):
        group, is_new = await services.consumer_groups.put(
            name,
            new_rules,
            begin=lambda rules: services.delivery.begin(name, rules),
            new_webhook=new_webhook,
        )
    services.members.share_soon()
    services.pusher.refresh(name)
    status = 201 if is_new else 200
    return _answer(services, group, status=status, shows_secret=was_secret_made)


@operation(
    "GET",
    "/v1/groups/{group}",
    "getGroup",
    tag="groups",
    scopes=["receive", "operate"],
    answer_headers=["ETag"],
    answers={200: Group},
    problems=["group_not_found", "reserved_topic"],
)
async def get(services: Services, _: Call, name: str) -> Reply:
    """Get a consumer group."""
    return _answer(services, services.consumer_groups.get(name))


@operation(
    "POST",
    "/v1/groups/{group}/rotate-secret",
    "rotateGroupSigningSecret",
    tag="groups",
    scopes=["receive", "operate"],
    answer_headers=["ETag"],
    answers={200: Group},
    headers=[IF_MATCH],
    problems=[
        "group_not_found",
        "reserved_topic",
        "revision_mismatch",
        "unsupported_combination",
        *WRITING,
    ],
    send_once=True,
)
async def rotate_secret(services: Services, call: Call, name: str) -> Reply:
    """Rotate the signing secret of a group with `push`. Returns the new secret. For one day pushes
    are signed with both.
    """
    services.consumer_groups.check_name(name)
    group = await services.consumer_groups.rotate_secret(
        name,
        overlap_ms=services.signed_post.options.secret_overlap_ms,
        check=call.check_conditions,
    )
    if group is None:
        raise Refusal(
            "unsupported_combination", f"group {name} has no push, and so no signing secret"
        )
    return _answer(services, group, shows_secret=True)


def _size_of(group: ConsumerGroup) -> int:
    """About how many bytes the group takes in a page."""
    return sum(len(one.topic) + len(one.expression) for one in group.rules.subscriptions)


@operation(
    "DELETE",
    "/v1/groups/{group}",
    "deleteGroup",
    tag="groups",
    scopes=["operate"],
    answers={204: None},
    headers=[IF_MATCH],
    problems=["group_not_found", "reserved_topic", "revision_mismatch", *WRITING],
)
async def delete(services: Services, call: Call, name: str) -> Reply:
    """Delete a consumer group.

    Ends its members, leases and retries, and deletes its offsets and dead letters. The messages of
    its topics stay.
    """
    await services.consumer_groups.delete(name, check=call.check_conditions)
    return NO_CONTENT


def _rules(services: Services, given: GroupInput, old: delivery.GroupRules) -> delivery.GroupRules:
    """The rules with the fields that are given. Raises Refusal."""
    fields = {
        name: value
        for name, value in msgspec.structs.asdict(given).items()
        if value is not UNSET and name not in ("topics", "start_at", "push", "signing_secret")
    }
    if given.start is not UNSET or given.start_at is not UNSET:
        fields["start_at_ms"] = start_at_ms(given.start, given.start_at)
    if given.queue_rooms is not UNSET:
        _check_rooms(given.queue_rooms)
    if given.topics is not UNSET:
        subscribed = {one.topic for one in old.subscriptions}
        named = subscriptions_of(services, given.topics)
        fields["subscriptions"] = (
            *old.subscriptions,
            *(one for one in named if one.topic not in subscribed),
        )
    return msgspec.convert(
        msgspec.to_builtins(old) | msgspec.to_builtins(fields), delivery.GroupRules
    )


def _check_rooms(rooms: Mapping[str, str]) -> None:
    """Raise Refusal where it is not rooms by `topic/queue_id`."""
    for queue, room in rooms.items():
        if not _QUEUE.fullmatch(queue) or not 1 <= len(room) <= _MAX_ROOM_CHARACTERS:
            raise invalid_field(
                "/queue_rooms",
                "invalid_format",
                f"{queue[:140]!r} must be topic/queue_id, its room 1 to {_MAX_ROOM_CHARACTERS} "
                "characters",
            )


def _check_conflicts(given: GroupInput, old: delivery.GroupRules) -> None:
    """Raise Refusal where the request would change what the consumers of the group get from topics
    that it reads.
    """
    conflicts: list[FieldError] = []
    if given.topics is not UNSET:
        conflicts += other_filters(given.topics, old)
        named = {one.topic for one in given.topics}
        conflicts += [
            differs("/topics", one.topic, None, code="filter_conflict")
            for one in old.subscriptions
            if one.topic not in named
        ]
    if old.subscriptions:
        conflicts += other_start(given.start, given.start_at, old)
    if conflicts:
        raise Refusal(
            "filter_conflict",
            "a PUT without If-Match cannot change a filter or the start, or end a subscription",
            errors=conflicts,
        )


def _webhook(
    services: Services,
    given: GroupInput,
    old: Webhook[PushSettings] | None,
    secret: SecretStr | None,
    *,
    is_replaced: bool,
) -> Webhook[PushSettings] | None:
    """The webhook with what is given. `is_replaced`: by this request, as a whole. Raises Refusal.

    What a request omits is kept, unless it replaces all settings.
    """
    push = given.push
    if push is UNSET and (is_replaced or old is None):
        if secret is not None:
            raise invalid_field(
                "/signing_secret", "not_allowed", "signing_secret is only allowed with push"
            )
        return None
    if push is UNSET:
        assert old is not None
        settings = old.settings
        if secret is None:
            return old
    else:
        base = PushSettings(url=push.url) if old is None or is_replaced else old.settings
        given_fields = msgspec.structs.asdict(push).items()
        settings = msgspec.structs.replace(
            base, **{name: value for name, value in given_fields if value is not UNSET}
        )
    if old is None:
        return Webhook(settings=settings, signing_secret=secret or SecretStr(new_secret()))
    if old.settings.url != settings.url and not is_replaced:
        raise Refusal(
            "check_conflict",
            "a PUT without If-Match cannot change the URL that messages are pushed to",
            errors=[differs("/push/url", old.settings.url, settings.url, code="check_conflict")],
        )
    until_ms = services.clock.wall_ms() + services.signed_post.options.secret_overlap_ms
    return old.with_settings(settings, secret, overlap_until_ms=until_ms)


def _answer(
    services: Services, group: ConsumerGroup, *, status: int = 200, shows_secret: bool = False
) -> Reply:
    body = _view(services, group)
    if shows_secret and group.webhook is not None:
        body.signing_secret = group.webhook.signing_secret.get_secret_value()
    return reply(status, body, {"ETag": f'"{group.revision}"'})


def _view(services: Services, group: ConsumerGroup) -> Group:
    rules = group.rules
    view = Group(
        group=group.name,
        topics=[
            Subscription(topic=one.topic, filter=Filter(kind=one.kind, expression=one.expression))
            for one in rules.subscriptions
        ],
        start=rules.start.value,
        start_at=UNSET if rules.start_at_ms is None else codec.rfc3339(rules.start_at_ms),
        lease_ms=rules.lease_ms,
        max_attempts=rules.max_attempts,
        backoff_ms=list(rules.backoff_ms),
        dead_letter=rules.dead_letter,
        ordered=rules.ordered,
        skip_lag_over=UNSET if rules.skip_lag_over is None else rules.skip_lag_over,
        skip_older_than_ms=UNSET if rules.skip_older_than_ms is None else rules.skip_older_than_ms,
        session_timeout_ms=rules.session_timeout_ms,
        queue_rooms=rules.queue_rooms,
        created_at=codec.rfc3339(group.created_at_ms),
        revision=group.revision,
    )
    webhook = group.webhook
    if webhook is not None:
        view.push = Push(
            url=webhook.settings.url,
            timeout_ms=webhook.settings.timeout_ms,
            concurrency=webhook.settings.concurrency,
            format=webhook.settings.format,
            disabled_at=UNSET
            if webhook.disabled_at_ms is None
            else codec.rfc3339(webhook.disabled_at_ms),
        )
        until_ms = webhook.overlap_until_ms(services.clock.wall_ms())
        if until_ms is not None:
            view.previous_secret_expires_at = codec.rfc3339(until_ms)
    return view
