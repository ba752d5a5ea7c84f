"""What the report of an export says of the settings of topics and consumer groups."""

from collections.abc import Iterable

import pytest

from app.hand_over.taken_groups import retry_rules
from app.hand_over.written import written_groups
from app.registry.topics import TopicSettings
from app.store_moves.export_findings import of_groups, of_topics
from app.store_moves.report import Finding, found_only
from delivery.groups import GroupRules, Subscription

HOUR_MS = 3_600_000


def codes(findings: Iterable[Finding]) -> dict[str, list[str]]:
    return {one.code: one.names for one in found_only(findings)}


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        (GroupRules(dead_letter=False), "groups_without_dead_letters"),
        (GroupRules(max_attempts=5), "group_retries"),
        (GroupRules(backoff_ms=(7,)), "group_retries"),
        (GroupRules(subscriptions=(Subscription("orders", "tag", "a"),)), "group_filters"),
        (GroupRules(ordered=True), "ordered_groups"),
        (GroupRules(skip_lag_over=5), "skip_rules"),
    ],
)
def test_a_setting_of_a_group_that_no_file_for_a_broker_says_is_named(rules, code):
    assert codes(of_groups({"billing": rules})) == {code: ["billing"]}


@pytest.mark.parametrize("dead_letter", [True, False])
@pytest.mark.parametrize("max_attempts", [1, 5])
def test_a_group_that_a_broker_would_treat_as_another_one_is_named(dead_letter, max_attempts):
    rules = GroupRules(dead_letter=dead_letter, max_attempts=max_attempts)
    (written,) = written_groups({}, {"billing": rules}).values()

    is_kept = retry_rules(written, GroupRules()).dead_letter == dead_letter
    found = codes(of_groups({"billing": rules}))

    assert ("groups_without_dead_letters" in found) is not is_kept


def test_a_group_with_the_defaults_and_a_topic_with_the_defaults_are_kept():
    rules = GroupRules(subscriptions=(Subscription("orders"),))

    assert codes(of_groups({"billing": rules})) == {}
    assert codes(of_topics([TopicSettings(topic="orders", retention_ms=72 * HOUR_MS)])) == {}


def test_what_a_broker_has_for_all_topics_together_is_named_for_the_others():
    topics = [
        TopicSettings(topic="long", retention_ms=100 * HOUR_MS),
        TopicSettings(topic="short", retention_ms=72 * HOUR_MS),
        TopicSettings(topic="two", retention_ms=100 * HOUR_MS, message_types=("normal", "delayed")),
        TopicSettings(topic="one", retention_ms=100 * HOUR_MS, message_types=("fifo",)),
    ]

    assert codes(of_topics(topics)) == {"retention": ["short"], "message_types": ["two"]}
