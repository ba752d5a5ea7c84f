"""The table of the name service: who is listed, who is the primary, and whose topics count."""

import pytest

from app.names import views
from app.names.options import NameOptions
from app.names.registration import NodeRegistration, RegisteredTopic
from app.names.table import NameTable, NameTaken, NoSuchName
from storage.errors import LimitReached
from tests.support.clock import ManualClock

OPTIONS = NameOptions(max_nodes=3)
AWAY_MS, FORGET_MS = OPTIONS.away_ms, OPTIONS.forget_ms


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def table(clock) -> NameTable:
    return NameTable(OPTIONS, clock)


def primary(group: str = "shop", *, epoch: int = 1, topics: str = "", **more) -> NodeRegistration:
    """`topics`: their names; their version is made of them."""
    named = [RegisteredTopic(topic=name, read_queues=4, write_queues=4) for name in topics.split()]
    given = {"topics": named, "data_version": topics} if topics else {}
    return NodeRegistration(
        **{"service_id": group, "end_offset": 0, **given, **more},
        group=group,
        role="primary",
        epoch=epoch,
    )


def replica(group: str = "shop", **more) -> NodeRegistration:
    fields = {"service_id": group, "epoch": 1, "end_offset": 0, **more}
    return NodeRegistration(group=group, role="replica", **fields)


def primary_of(table: NameTable, group: str = "shop") -> str:
    found = table.primary_of(group)
    return "" if found is None else found.node


def test_the_node_of_the_later_epoch_is_the_primary_whoever_was_heard_of_last(table):
    table.register("a", primary(epoch=1))
    table.register("b", primary(epoch=1001))
    table.register("a", primary(epoch=1))

    assert primary_of(table) == "b"
    answer = views.registered(table, "a", primary(epoch=1))
    assert answer.superseded_by.node == answer.primary.node == "b"
    assert not views.registered(table, "b", primary(epoch=1001)).superseded_by


def test_a_primary_that_is_away_stands_for_nothing_but_stops_an_older_one(table, clock):
    table.register("b", primary(epoch=1001))
    clock.advance(AWAY_MS - 1)
    assert primary_of(table) == "b"
    clock.advance(1)

    assert primary_of(table) == ""
    assert views.registered(table, "a", primary(epoch=1)).superseded_by.node == "b"
    assert not views.registered(table, "a", replica()).superseded_by


def test_a_service_of_another_id_is_no_successor(table, clock):
    table.register("b", primary(epoch=1001, service_id="other"))
    clock.advance(AWAY_MS)

    assert not views.registered(table, "a", primary(epoch=1)).superseded_by


def test_a_node_that_is_silent_is_away_then_forgotten_and_its_topics_stay(table, clock):
    table.register("a", primary(topics="orders"))
    clock.advance(AWAY_MS)
    (found,) = views.all_nodes(table)
    assert (found.away, found.silent_ms) == (True, AWAY_MS)
    clock.advance(FORGET_MS - AWAY_MS)

    assert views.all_nodes(table) == []
    (route,) = views.routes(table, "orders")
    assert (route.group, route.primary) == ("shop", views.registered(table, "x", replica()).primary)
    assert views.group_of_nodes(table, "shop").nodes == []


def test_a_node_that_registers_again_is_there(table, clock):
    table.register("a", primary())
    clock.advance(AWAY_MS)
    table.register("a", primary())

    assert primary_of(table) == "a"


def test_topics_are_replaced_as_a_whole_and_kept_where_none_are_sent(table):
    table.register("a", primary(topics="orders bills"))
    table.register("a", primary())
    assert {*table.routes("orders")} == {*table.routes("bills")} == {"shop"}
    table.register("a", primary(topics="bills"))

    with pytest.raises(NoSuchName):
        table.routes("orders")
    assert table.data_version_of("shop") == "bills"


def test_the_topics_of_a_primary_that_was_superseded_do_not_count(table):
    table.register("b", primary(epoch=1001, topics="orders"))
    table.register("a", primary(epoch=1, topics="old"))

    assert table.data_version_of("shop") == "orders"


def test_the_numbers_of_the_others_begin_with_1_with_a_primary_and_without(table):
    table.register("c", replica())
    assert [(one.node, one.number) for one in views.group_of_nodes(table, "shop").nodes] == [
        ("c", 1)
    ]
    table.register("b", primary())
    table.register("a", replica())

    expected = {"b": 0, "a": 1, "c": 2}
    assert {one.node: one.number for one in views.all_nodes(table)} == expected
    assert [one.node for one in views.group_of_nodes(table, "shop").nodes] == [*expected]


@pytest.mark.parametrize(
    ("node", "other"),
    [
        ("a", primary("bank")),  # the name of the node, in another group
        ("a", primary("shop", service_id="bank")),
        ("b", primary("shop", service_id="bank")),  # the name of the group
        ("b", replica("shop", service_id="bank")),
    ],
)
def test_a_name_of_another_service_is_refused_while_that_is_there(table, clock, node, other):
    table.register("a", primary())
    with pytest.raises(NameTaken):
        table.register(node, other)
    assert [one.node for one in table.nodes()] == ["a"]
    assert table.nodes()[0].registration.service_id == "shop"
    clock.advance(AWAY_MS)
    table.register(node, other)


def test_a_replica_that_does_not_know_its_service_yet_is_taken(table):
    table.register("a", primary())
    table.register("b", replica(service_id=""))

    assert [one.node for one in table.nodes_of("shop")] == ["a", "b"]


def test_nodes_and_topics_have_limits(table, clock):
    for name in ("a", "b", "c"):
        table.register(name, primary(name))
    with pytest.raises(LimitReached):
        table.register("d", primary("d"))
    table.register("c", primary("c"))
    table.unregister("c")
    table.register("d", primary("d"))
    many = " ".join(f"t{number}" for number in range(50_001))
    table.register("a", primary("a", topics=many))
    with pytest.raises(LimitReached):
        table.register("b", primary("b", topics=many))
    assert table.data_version_of("b") == ""


def test_of_groups_without_a_node_the_oldest_is_forgotten_first(table):
    for name in ("a", "b", "c", "d"):
        table.register("node", primary(name, topics=f"of-{name}"))
        table.unregister("node")

    assert [*table.groups()] == ["b", "c", "d"]
    with pytest.raises(NoSuchName):
        table.routes("of-a")
    with pytest.raises(NoSuchName):
        table.cluster_of("a")


def test_a_topic_of_several_services_has_a_route_to_each(table):
    table.register("a", primary("shop", topics="orders", url="http://a"))
    table.register("b", primary("bank", topics="orders", cluster="eu", url="http://b"))

    found = views.routes(table, "orders")

    assert [(one.group, one.cluster, one.primary.url) for one in found] == [
        ("bank", "eu", "http://b"),
        ("shop", "default", "http://a"),
    ]
    assert table.groups() == {"bank": "eu", "shop": "default"}
