"""Clients that generators make of openapi/openapi.json: made and compiled without a warning, by
the strictest settings, and run against a live service of a later release, which has a code of
problems that they do not know.
"""

import pytest

from tests.clients import go, java, python, rust, typescript
from tests.clients.conftest import KEY, owner
from tests.clients.generator import Generator
from tests.clients.relay import port_before
from tests.clients.workplace import ROOT, Workplace, selected, skip_without
from tests.support.server import Server

pytestmark = pytest.mark.clients

GENERATORS = [
    generator
    for language in (typescript, python, go, java, rust)
    for generator in language.GENERATORS
    if selected(generator.language)
]
# What each live program prints.
STEPS = """\
begin prepared
commit committed
send synced
receive {"n":1} {"n":2}
ack 2
refused 409 transaction_brand_new_reason
"""
KNOWN, LATER = b"transaction_already_resolved", b"transaction_brand_new_reason"


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.name)
def test_a_client_is_generated_compiled_and_used_without_a_warning(
    generator: Generator, server, figures
):
    skip_without(*generator.needs)
    place = Workplace.copy_of(ROOT / "openapi" / "clients" / generator.name, generator.name)
    generator.install(place)
    generator.generate(place)
    lines = place.lines("generated", generator.suffix)
    generator.compile(place)
    make_topic_and_group(server)

    with port_before(server.port, replaced=(KNOWN, LATER)) as port:
        environment = {"ESCROWMQ_URL": f"http://127.0.0.1:{port}", "ESCROWMQ_API_KEY": KEY}
        printed = place.run("live", *generator.live, environment=environment)

    assert printed == STEPS
    assert undecided_and_unread(server) == (["live-1"], ["live-3"], 0)
    seconds = [place.seconds.get(step, 0) for step in ("install", "generate", "compile")]
    row = [f"{lines:,}", *(f"{taken:.1f}" for taken in seconds)]
    figures.append(f"| {generator.name} | {' | '.join(row)} |")


def make_topic_and_group(server: Server) -> None:
    """One queue, so that messages come in the order in which they were published."""
    with owner(server) as client:
        topic = client.post("/v1/topics", json={"topic": "live", "queues": 1})
        group = client.put("/v1/groups/live", json={"topics": [{"topic": "live"}]})
        assert (topic.status_code, group.status_code) == (201, 201)


def undecided_and_unread(server: Server) -> tuple[list[str], list[str], int]:
    """The transactions that were committed and rolled back, and how far behind the group is."""
    with owner(server) as client:
        by_state = [
            [
                one["transaction_id"]
                for one in client.get(f"/v1/transactions?state={state}").json()["items"]
            ]
            for state in ("committed", "rolled_back")
        ]
        lag = client.get("/v1/groups/live/lag").json()
        behind = lag["messages_ready"] + lag["messages_leased"] + lag["messages_waiting"]
    return by_state[0], by_state[1], behind
