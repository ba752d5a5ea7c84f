"""Subscriptions that a request names, and where to start: of a group, or of a member that joins."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from app.encoding import codec
from app.groups.schemas import SubscriptionInput
from app.problems import FieldError, differs, invalid_field, refusal_of_field
from app.services import Services
from delivery.filters.filters import compile_filter
from delivery.groups import GroupRules, Subscription
from storage.errors import MessagingError


def subscriptions_of(services: Services, given: Sequence[SubscriptionInput]) -> list[Subscription]:
    """Raises Refusal."""
    found: dict[str, Subscription] = {}
    for index, one in enumerate(given):
        try:
            services.topics.get(one.topic)
        except MessagingError as error:
            raise refusal_of_field(error, f"/topics/{index}/topic") from error
        if one.topic in found:
            raise invalid_field(
                f"/topics/{index}/topic", "not_allowed", f"topic {one.topic} is listed twice"
            )
        if one.filter is UNSET:
            found[one.topic] = Subscription(one.topic)
            continue
        compile_filter(
            one.filter.kind, one.filter.expression, pointer=f"/topics/{index}/filter/expression"
        )
        found[one.topic] = Subscription(one.topic, one.filter.kind, one.filter.expression)
    return list(found.values())


def other_filters(given: Sequence[SubscriptionInput], old: GroupRules) -> list[FieldError]:
    """The filters of the request that are not the group's. An omitted one is the group's."""
    subscribed = {one.topic: one for one in old.subscriptions}
    found: list[FieldError] = []
    for index, one in enumerate(given):
        known = subscribed.get(one.topic)
        if known is None or one.filter is UNSET:
            continue
        if (one.filter.kind, one.filter.expression) != known[1:]:
            old_filter = {"kind": known.kind, "expression": known.expression}
            found.append(
                differs(f"/topics/{index}/filter", old_filter, one.filter, code="filter_conflict")
            )
    return found


def start_at_ms(start: str | UnsetType, start_at: str | UnsetType) -> int | None:
    """The time at which a group starts. Raises Refusal where it does not go with `start`."""
    if (start == "time") != (start_at is not UNSET):
        code, verb = (
            ("missing", "is needed") if start == "time" else ("not_allowed", "is only allowed")
        )
        raise invalid_field("/start_at", code, f"start_at {verb} with start=time")
    return None if start_at is UNSET else codec.parse_time(start_at, "/start_at")


def other_start(
    start: str | UnsetType, start_at: str | UnsetType, old: GroupRules
) -> list[FieldError]:
    """The difference between the start of the request and that of the group; an omitted start has
    none.
    """
    if start is UNSET and start_at is UNSET:
        return []
    if start != old.start:
        return [differs("/start", old.start, start, code="filter_conflict")]
    if start_at_ms(start, start_at) != old.start_at_ms:
        known = None if old.start_at_ms is None else codec.rfc3339(old.start_at_ms)
        return [differs("/start_at", known, start_at, code="filter_conflict")]
    return []
