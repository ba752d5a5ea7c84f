"""The greeting of a replica: what it takes from something that answers, and what it makes of it."""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from pydantic import SecretStr

from app.replicas import frames
from app.replicas.frames import Accept, BadFrame, Challenge, Hello, Kind, Refuse
from app.replicas.greeting import FollowRefused, LogParts, greet
from app.replicas.options import ReplicaOptions
from app.replicas.promise import Promise
from storage.local.replica_store import LocalReplica
from tests.support.lives import in_world
from tests.support.replicated import SEGMENT_BYTES, open_replica, record
from tests.support.simulation import World

SECRET = "a secret of both machines"
OPTIONS = ReplicaOptions(node="b", secret=SecretStr(SECRET))
NONCE = bytes(frames.NONCE_BYTES)
Answer = Callable[[bytes, Hello], bytes]  # a frame, by the proof that a primary would give


class Line:
    """Both ends of a connection. The other side sends what the test has chosen."""

    def __init__(self, answer: Answer) -> None:
        self.reader = asyncio.StreamReader(loop=asyncio.get_running_loop())
        self.reader.feed_data(
            frames.encode_message(Kind.CHALLENGE, Challenge(frames.VERSION, NONCE))
        )
        self._answer = answer

    def write(self, data: bytes) -> None:
        if data == frames.GREETING:
            return
        hello = msgspec.msgpack.decode(data[5:-4], type=Hello)  # without the ends of the frame
        assert hello.proof == frames.replica_proof(SECRET, NONCE, hello.nonce)
        proof = frames.primary_proof(SECRET, NONCE, hello.nonce)
        self.reader.feed_data(self._answer(proof, hello))


async def greeted(answer: Answer, store: LocalReplica | None = None, **how: bool) -> Accept:
    line = Line(answer)
    return await greet(
        line.reader,
        cast("asyncio.StreamWriter", line),
        OPTIONS,
        store,
        segment_bytes=SEGMENT_BYTES,
        is_by_name=how.get("is_by_name", False),
    )


def accepts(*, is_proven: bool = True, begin: int = 0) -> Answer:
    def answer(proof: bytes, _: Hello) -> bytes:
        accept = Accept(proof if is_proven else b"", 0, begin, 1_000, "", 7, "a")
        return frames.encode_message(Kind.ACCEPT, accept)

    return answer


def refuses(*, is_proven: bool, is_final: bool = True, parts_at: int | None = None) -> Answer:
    def answer(proof: bytes, _: Hello) -> bytes:
        refuse = Refuse(
            "why", is_final, parts_at, b"last", False, proof if is_proven else b"", 7, "a"
        )
        return frames.encode_message(Kind.REFUSE, refuse)

    return answer


def test_a_primary_that_knows_the_secret_lets_it_in():
    accept = asyncio.run(greeted(accepts(begin=100)))
    assert (accept.begin, accept.epoch, accept.node) == (100, 7, "a")


@pytest.mark.parametrize("answer", [accepts(is_proven=False), refuses(is_proven=False)])
def test_without_the_secret_an_answer_ends_a_replica_only_where_its_settings_name_the_address(
    answer,
):
    with pytest.raises(FollowRefused):
        asyncio.run(greeted(answer))
    with pytest.raises(BadFrame):
        asyncio.run(greeted(answer, is_by_name=True))


def test_a_refusal_for_good_counts_with_the_secret_and_another_never():
    with pytest.raises(FollowRefused, match="why"):
        asyncio.run(greeted(refuses(is_proven=True), is_by_name=True))
    for is_proven in (True, False):
        with pytest.raises(BadFrame, match="why"):
            asyncio.run(greeted(refuses(is_proven=is_proven, is_final=False)))


def test_a_cut_is_asked_for_by_a_primary_that_knows_the_secret_alone():
    with pytest.raises(LogParts) as parts:
        asyncio.run(greeted(refuses(is_proven=True, parts_at=64)))
    assert (parts.value.at, parts.value.last_bytes) == (64, b"last")
    assert parts.value.primary == Promise(7, "a")
    with pytest.raises(FollowRefused):
        asyncio.run(greeted(refuses(is_proven=False, parts_at=64)))


def test_a_frame_of_another_kind_is_none_of_the_greeting():
    with pytest.raises(BadFrame, match="ACK where ACCEPT must come"):
        asyncio.run(greeted(lambda *_: frames.encode(Kind.ACK, b"")))


def test_bytes_that_do_not_begin_where_the_log_ends_are_refused():
    async def main(world: World) -> None:
        store = await open_replica(world)
        end = store.stored_offset()
        assert (await greeted(accepts(begin=end), store)).begin == end
        for begin in (0, end - 1, end + 1):
            with pytest.raises(BadFrame, match=f"where {end} must come"):
                await greeted(accepts(begin=begin), store)
        await store.aclose()

    in_world(main, record(7, lives=1, calls=5).disk.after_kill())
