"""The advice of docs/testing.md on a redrive in a test."""

from escrowmq_client import DeadLetter, Worker


def test_a_redrive_has_run_when_the_clock_of_the_fixture_has_moved(service, client):
    topic = service.topic("redriven")
    client.put_group("redriving", topics=[topic], start="earliest")
    client.send(topic, json=1)
    is_broken, handled = True, []

    def handle(message) -> None:
        if is_broken:
            raise DeadLetter("no paper")
        handled.append(message.json())

    worker = Worker(client, "redriving", handle)
    assert worker.run_until_idle() == 1
    is_broken = False

    client.redrive_dead_letters("redriving", "all")
    service.advance(ms=1)

    assert worker.run_until_idle() == 1
    assert handled == [1]
