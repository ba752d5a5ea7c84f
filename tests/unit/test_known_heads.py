"""Which heads are known after a request, and what cannot be had by them."""

import asyncio

from tests.support.two_ways import Way

KEY = "a key that nobody guesses"
BODY = b'{"payload":"x"}'


def head(*more: bytes) -> bytes:
    lines = [b"POST /v1/topics/orders/messages HTTP/1.1", b"Host: localhost", b"Content-Length: %d" % len(BODY), *more]
    return b"\r\n".join([*lines, b"", b""])


def statuses(directory, *requests: bytes) -> tuple[list[bytes], int]:
    """The statuses of requests to a service that asks for a key, and how many went by a known head."""

    async def ask() -> tuple[list[bytes], int]:
        async with Way(directory, is_direct=True, api_keys=[KEY]) as way:
            return [(await way.ask(one, connection=number))[9:12] for number, one in enumerate(requests)], way.taken

    return asyncio.run(ask())


def test_a_head_is_known_after_its_first_request(tmp_path):
    sent = head(b"Authorization: Bearer " + KEY.encode()) + BODY

    assert statuses(tmp_path, sent, sent, sent) == ([b"201"] * 3, 2)


def test_empty_lines_in_front_of_a_request_make_no_known_head_that_anybody_could_use(tmp_path):
    sent = head(b"Authorization: Bearer " + KEY.encode()) + BODY
    for front in (b"\r\n\r\n", b"\r\n"):
        found, taken = statuses(tmp_path / str(len(front)), front + sent, front + sent, front + BODY, b"\r\n\r\n" + BODY)

        assert found == [b"201", b"201", b"400", b"400"]
        assert taken == 0


def test_a_known_head_lets_no_other_client_in(tmp_path):
    sent = head(b"Authorization: Bearer " + KEY.encode()) + BODY

    found, _ = statuses(tmp_path, sent, sent, head() + BODY, head(b"Authorization: Bearer another") + BODY)

    assert found == [b"201", b"201", b"401", b"401"]


def test_a_client_that_takes_no_answers_gets_no_more_of_them(tmp_path):
    sent = head(b"Authorization: Bearer " + KEY.encode()) + BODY
    looked = b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n\r\n"

    async def ask(request: bytes) -> tuple[bool, int, bytes]:
        async with Way(tmp_path / str(len(request)), is_direct=True, api_keys=[KEY]) as way:
            for _ in range(2):
                await way.ask(sent)
            taken = way.taken
            way.pause_writing()
            asking = asyncio.ensure_future(way.ask(request))
            (other,) = await asyncio.gather(way.ask(sent, connection=1))  # in the meantime others are answered
            is_answered = asking.done()
            way.resume_writing()
            assert other[9:12] == b"201"
            return is_answered, way.taken - taken, (await asking)[9:12]

    assert asyncio.run(ask(sent)) == (False, 1, b"201")
    assert asyncio.run(ask(looked)) == (False, 1, b"200")
