"""Operations of consumer groups: settings, leases and lag."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from escrowmq_client.call import (
    Call,
    decoded,
    fields,
    if_revision,
    json_headers,
    nothing,
    query,
)
from escrowmq_client.models.groups import (
    Group,
    GroupPage,
    Lag,
    LeasePage,
    PushInput,
    SubscriptionInput,
)


def list_groups(*, page_size: int | None = None, page_token: str | None = None) -> Call[GroupPage]:
    """List consumer groups by name."""
    return Call(
        "listGroups",
        "GET",
        "/v1/groups",
        decoded(GroupPage),
        query=query(page_size=page_size, page_token=page_token),
    )


def put_group(
    group: str,
    *,
    topics: Iterable[SubscriptionInput | str] | None = None,
    start: Literal["earliest", "latest", "time", "rocketmq"] | None = None,
    start_at: datetime | None = None,
    lease_ms: int | None = None,
    max_attempts: int | None = None,
    backoff_ms: Sequence[int] | None = None,
    dead_letter: bool | None = None,
    ordered: bool | None = None,
    skip_lag_over: int | None = None,
    skip_older_than_ms: int | None = None,
    session_timeout_ms: int | None = None,
    queue_rooms: Mapping[str, str] | None = None,
    push: PushInput | None = None,
    signing_secret: str | None = None,
    if_match: int | None = None,
) -> Call[Group]:
    """Create or update a consumer group. Fields that are not given keep their value.

    `topics` is all that the group reads: names, or subscriptions with a filter. `if_match`: the
    revision that is to be replaced as a whole; needed to change the filter or the start of a topic
    that the group reads, or to end a subscription.

        client.put_group("billing", topics=["orders"], max_attempts=5)

    With `push` the first answer holds the secret that messages are signed with, unless it is your
    own (`signing_secret`).

    Raises Conflict (filter_conflict, check_conflict, group_active); NotFound (topic_not_found);
    ProblemError (revision_mismatch, validation_failed, check_url_refused, reserved_topic).
    """
    return Call(
        "putGroup",
        "PUT",
        "/v1/groups/{group}",
        decoded(Group),
        parts={"group": group},
        headers=json_headers(if_revision(if_match)),
        body=fields(
            topics=None if topics is None else [subscription(item) for item in topics],
            start=start,
            start_at=start_at,
            lease_ms=lease_ms,
            max_attempts=max_attempts,
            backoff_ms=backoff_ms,
            dead_letter=dead_letter,
            ordered=ordered,
            skip_lag_over=skip_lag_over,
            skip_older_than_ms=skip_older_than_ms,
            session_timeout_ms=session_timeout_ms,
            queue_rooms=None if queue_rooms is None else dict(queue_rooms),
            push=push,
            signing_secret=signing_secret,
        ),
    )


def get_group(group: str) -> Call[Group]:
    """Get a consumer group. Raises NotFound (group_not_found)."""
    return Call("getGroup", "GET", "/v1/groups/{group}", decoded(Group), parts={"group": group})


def delete_group(group: str, *, if_match: int | None = None) -> Call[None]:
    """Delete a consumer group: its leases, retries, offsets and dead letters.

    The messages of its topics stay. Raises NotFound (group_not_found); ProblemError
    (revision_mismatch).
    """
    return Call(
        "deleteGroup",
        "DELETE",
        "/v1/groups/{group}",
        nothing,
        parts={"group": group},
        headers=if_revision(if_match),
    )


def rotate_group_signing_secret(group: str, *, if_match: int | None = None) -> Call[Group]:
    """Rotate the signing secret of a group with push, and return the new one.

    For one day pushes are signed with both. A call whose answer was lost is not repeated.

    Raises NotFound (group_not_found); ProblemError (revision_mismatch, unsupported_combination).
    """
    return Call(
        "rotateGroupSigningSecret",
        "POST",
        "/v1/groups/{group}/rotate-secret",
        decoded(Group),
        parts={"group": group},
        headers=if_revision(if_match),
        repeatable=False,
    )


def list_leases(
    group: str, *, page_size: int | None = None, page_token: str | None = None
) -> Call[LeasePage]:
    """List leased messages with their attempt and the end of their lease.

    Raises NotFound (group_not_found).
    """
    return Call(
        "listLeases",
        "GET",
        "/v1/groups/{group}/leases",
        decoded(LeasePage),
        parts={"group": group},
        query=query(page_size=page_size, page_token=page_token),
    )


def get_group_lag(group: str) -> Call[Lag]:
    """Get the lag of a group: messages ready, leased and waiting for a retry.

    Raises NotFound (group_not_found).
    """
    return Call(
        "getGroupLag", "GET", "/v1/groups/{group}/lag", decoded(Lag), parts={"group": group}
    )


def subscription(item: SubscriptionInput | str) -> SubscriptionInput:
    return SubscriptionInput(item) if isinstance(item, str) else item
