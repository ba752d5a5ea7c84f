"""Which connections are served when there are too many."""

from app.http.connections import IDLE_SECONDS, Connections


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Client:
    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.is_closing = False
        self.has_asked = False  # and the service has not read it yet
        connections.opened(self)

    def close_idle(self) -> bool:
        self.is_closing = not self.has_asked
        return self.is_closing

    def asks(self, path: str = "/v1/topics") -> bool:
        return self.connections.serves(self, path)


def test_beyond_the_limit_only_probes_and_operators_are_served_until_there_is_room():
    connections = Connections(2, reserved=1)
    busy = [Client(connections), Client(connections)]
    assert all(client.asks() for client in busy)

    late = Client(connections)

    assert [late.asks(path) for path in ("/livez", "/readyz", "/metrics", "/v1/admin/store")] == [
        True
    ] * 4
    assert not late.asks()
    connections.lost(busy[0])
    assert late.asks()


def test_the_connection_that_has_been_idle_for_longest_is_closed_for_a_new_one():
    time = Time()
    connections = Connections(3, reserved=1, now=time)
    first, second, third = (Client(connections) for _ in range(3))
    for client in (first, second):
        assert client.asks()
    connections.answered(second)
    connections.answered(first)
    time.now += IDLE_SECONDS

    late = Client(connections)

    assert [client.is_closing for client in (first, second, third, late)] == [
        False,
        False,
        True,
        False,
    ]
    connections.lost(third)
    assert late.asks()
    second.has_asked = True
    Client(connections)
    assert not second.is_closing
    assert first.is_closing


def test_what_has_just_been_opened_is_not_closed_before_it_can_ask():
    connections = Connections(1, reserved=1)
    first, second = Client(connections), Client(connections)
    connections.close_one()
    assert not first.is_closing
    assert not second.is_closing


def test_a_connection_with_a_request_in_progress_is_never_closed_for_another():
    time = Time()
    connections = Connections(1, reserved=1, now=time)
    busy = Client(connections)
    assert busy.asks()
    probe = Client(connections)
    assert probe.asks("/livez")
    time.now += IDLE_SECONDS

    connections.close_one()

    assert not busy.is_closing
    assert not probe.is_closing
