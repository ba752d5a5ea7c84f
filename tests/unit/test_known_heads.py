"""Which heads are known after a request, and what cannot be had by them."""

import asyncio

import pytest
from pydantic import SecretStr

from app.http.access import KeyOptions
from tests.support.two_ways import Way

KEY = "a key that nobody guesses"
BODY = b'{"payload":"x"}'
BATCH = b'{"entries":[{"message":{"payload":"x"}}]}'


def head(*more: bytes, path: bytes = b"", body: bytes = BODY) -> bytes:
    line = b"POST /v1/topics/orders/messages%b HTTP/1.1" % path
    lines = [line, b"Host: localhost", b"Content-Length: %d" % len(body), *more]
    return b"\r\n".join([*lines, b"", b""])


def statuses(directory, *requests: bytes) -> tuple[list[bytes], int]:
    """The statuses of requests to a service that asks for a key, and how many went by a
    known head.
    """

    async def ask() -> tuple[list[bytes], int]:
        async with Way(directory, is_direct=True, api_keys=[KEY]) as way:
            return [
                (await way.ask(one, connection=number))[9:12] for number, one in enumerate(requests)
            ], way.taken

    return asyncio.run(ask())


def test_a_head_is_known_after_its_first_request(tmp_path):
    sent = head(b"Authorization: Bearer " + KEY.encode()) + BODY

    assert statuses(tmp_path, sent, sent, sent) == ([b"201"] * 3, 2)


def test_empty_lines_in_front_of_a_request_make_no_known_head_that_anybody_could_use(tmp_path):
    sent = head(b"Authorization: Bearer " + KEY.encode()) + BODY
    for front in (b"\r\n\r\n", b"\r\n"):
        found, taken = statuses(
            tmp_path / str(len(front)), front + sent, front + sent, front + BODY, b"\r\n\r\n" + BODY
        )

        assert found == [b"201", b"201", b"400", b"400"]
        assert taken == 0


def test_a_known_head_lets_no_other_client_in(tmp_path):
    sent = head(b"Authorization: Bearer " + KEY.encode()) + BODY

    found, _ = statuses(
        tmp_path, sent, sent, head() + BODY, head(b"Authorization: Bearer another") + BODY
    )

    assert found == [b"201", b"201", b"401", b"401"]


def test_a_client_that_takes_no_answers_gets_no_more_of_them(tmp_path):
    sent = head(b"Authorization: Bearer " + KEY.encode()) + BODY
    looked = (
        b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
        + KEY.encode()
        + b"\r\n\r\n"
    )

    async def ask(request: bytes) -> tuple[bool, int, bytes]:
        async with Way(tmp_path / str(len(request)), is_direct=True, api_keys=[KEY]) as way:
            for _ in range(2):
                await way.ask(sent)
            taken = way.taken
            way.pause_writing()
            asking = asyncio.ensure_future(way.ask(request))
            # in the meantime others are answered
            (other,) = await asyncio.gather(way.ask(sent, connection=1))
            is_answered = asking.done()
            way.resume_writing()
            assert other[9:12] == b"201"
            return is_answered, way.taken - taken, (await asking)[9:12]

    assert asyncio.run(ask(sent)) == (False, 1, b"201")
    assert asyncio.run(ask(looked)) == (False, 1, b"200")


PULL = b"GET /v1/topics/orders/queues/%d/messages?offset=%d HTTP/1.1\r\nHost: localhost\r\n%b\r\n"
AUTHORIZED = b"Authorization: Bearer " + KEY.encode() + b"\r\n"


def test_a_pull_is_answered_at_once_when_all_but_its_line_is_known(tmp_path):
    sent = head(AUTHORIZED[:-2]) + BODY

    found, taken = statuses(
        tmp_path,
        sent,
        PULL % (0, 0, AUTHORIZED),
        PULL % (1, 0, AUTHORIZED),
        PULL % (2, 0, AUTHORIZED),
    )

    assert found == [b"201", b"200", b"200", b"200"]
    assert taken == 2


def test_a_known_pull_lets_no_other_client_in(tmp_path):
    known = PULL % (0, 0, AUTHORIZED)
    other = PULL % (0, 0, b"Authorization: Bearer another\r\n")
    hidden = PULL % (0, 0, b"") + b"GET / HTTP/1.1\r\n" + AUTHORIZED + b"\r\n"
    sent = head(AUTHORIZED[:-2]) + BODY

    found, taken = statuses(tmp_path, sent, known, known, other, PULL % (0, 0, b""), hidden)

    assert found == [b"201", b"200", b"200", b"401", b"401", b"401"]
    assert taken == 1


def test_a_host_in_the_target_of_a_pull_does_not_vouch_for_the_one_in_its_head(tmp_path):
    """The host of an absolute target takes the place of the header's, which a web page chooses."""
    absolute = PULL.replace(b"GET /v1", b"GET http://localhost/v1").replace(
        b"Host: localhost", b"Host: evil.example"
    )
    sent = head() + BODY

    async def ask() -> list[bytes]:
        async with Way(tmp_path, is_direct=True) as way:
            requests = [
                sent,
                *[absolute % (0, 0, b"")] * 2,
                PULL.replace(b"localhost", b"evil.example") % (0, 0, b""),
            ]
            return [
                (await way.ask(one, connection=number))[9:12] for number, one in enumerate(requests)
            ]

    assert asyncio.run(ask()) == [b"201", b"200", b"200", b"421"]


def test_a_pull_that_fails_at_once_is_answered_by_its_handler(tmp_path):
    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "too many open files")

    async def ask() -> tuple[list[bytes], int]:
        async with Way(tmp_path, is_direct=True) as way:
            asked = [
                await way.ask(one)
                for one in (head() + BODY, PULL % (0, 0, b""), PULL % (0, 0, b""))
            ]
            taken, way.services.store.bounds = way.taken_reads, fail  # type: ignore[attr-defined]
            asked.append(await way.ask(PULL % (0, 0, b"")))
            return [one[9:12] for one in asked], way.taken_reads - taken

    assert asyncio.run(ask()) == ([b"201", b"200", b"200", b"200"], 0)


@pytest.mark.parametrize(("path", "body", "taken"), [(b"", BODY, 1), (b"/batch", BATCH, 0)])
def test_a_request_that_cannot_be_done_in_its_turn_is_answered_by_its_handler(
    tmp_path, path, body, taken
):
    def fail(*_: object) -> None:
        raise OSError(24, "too many open files")

    async def ask() -> tuple[list[bytes], int]:
        async with Way(tmp_path, is_direct=True) as way:
            request = head(path=path, body=body) + body
            asked = [await way.ask(request) for _ in range(2)]
            before, way.services.topics.get = way.taken, fail  # type: ignore[method-assign]
            asked.append(await way.ask(request))
            return [one[9:12] for one in asked], way.taken - before

    assert asyncio.run(ask()) == ([b"201"] * 3, taken)


def test_a_client_that_takes_no_answers_gets_no_more_pulls(tmp_path):
    pull = PULL % (0, 0, AUTHORIZED)

    async def ask() -> tuple[bool, int, bytes]:
        async with Way(tmp_path, is_direct=True, api_keys=[KEY]) as way:
            await way.ask(head(AUTHORIZED[:-2]) + BODY)
            for _ in range(2):
                await way.ask(pull)
            taken = way.taken_reads
            way.pause_writing()
            asking = asyncio.ensure_future(way.ask(pull))
            # in the meantime others are answered
            (other,) = await asyncio.gather(way.ask(pull, connection=1))
            is_answered = asking.done()
            way.resume_writing()
            assert other[9:12] == b"200"
            return is_answered, way.taken_reads - taken, (await asking)[9:12]

    assert asyncio.run(ask()) == (False, 1, b"200")


def test_a_known_head_allows_a_scoped_key_no_more_than_its_scopes_and_names(tmp_path):
    """All but the line of a request is known after the first one, and says which key it has."""
    key = KeyOptions(
        name="shop",
        key=SecretStr(KEY),
        scopes=("send", "receive"),
        topics=("orders",),
        groups=("shop",),
    )

    def post(path: bytes, body: bytes) -> bytes:
        lines = [
            b"POST %b HTTP/1.1" % path,
            b"Host: localhost",
            b"Content-Length: %d" % len(body),
            AUTHORIZED,
        ]
        return b"\r\n".join(lines) + b"\r\n" + body

    async def ask() -> tuple[list[bytes], int]:
        async with Way(tmp_path, is_direct=True, scoped_keys=[key]) as way:
            sent = post(b"/v1/topics/orders/messages", BODY)
            requests = [
                sent,
                sent,
                post(b"/v1/topics/salaries/messages", BODY),
                post(b"/v1/groups/payroll/receive", b'{"wait_ms":1000}'[: len(BODY)].ljust(15)),
                post(b"/v1/transactions/t-1/commit", b"{}".ljust(len(BODY))),
                PULL % (0, 0, AUTHORIZED),
                PULL % (0, 0, AUTHORIZED),
                PULL.replace(b"orders", b"salaries") % (0, 0, AUTHORIZED),
                sent,
            ]
            return [(await way.ask(one))[9:12] for one in requests], way.taken

    found, taken = asyncio.run(ask())

    assert found == [b"201", b"201", b"403", b"403", b"403", b"200", b"200", b"403", b"201"]
    assert taken == 2, "sends to its topic, which are hot for such a key, too"
