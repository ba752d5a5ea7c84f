"""The greeting of a replica: both sides prove that they know the secret, and the primary says
whether it lets the replica in.
"""

import asyncio
import secrets

from app.replicas import frames
from app.replicas.frames import Accept, BadFrame, Challenge, Hello, Kind, Refuse
from app.replicas.options import ReplicaOptions
from app.replicas.promise import Promise
from storage.local.replica_store import LocalReplica


class FollowRefused(Exception):
    """The primary does not let this replica in, and will not later."""


class LogParts(Exception):
    """From this log offset on, the log here is another one than that of the primary, which has
    these bytes before it. `was_lost`: the primary had it.
    """

    def __init__(self, refuse: Refuse, at: int) -> None:
        super().__init__(refuse.reason)
        self.at = at
        self.last_bytes = refuse.last_bytes
        self.was_lost = refuse.was_lost
        self.primary = Promise(refuse.epoch, refuse.node)


async def greet(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    options: ReplicaOptions,
    store: LocalReplica | None,
    *,
    segment_bytes: int,
    is_by_name: bool,
) -> Accept:
    """How the primary lets the replica in.

    `store` is None where there is no log yet. `is_by_name`: name servers gave the address, so what
    answers may be anything, and the next one may be right.

    Raises LogParts, FollowRefused, BadFrame, OSError, EOFError.
    """
    secret = options.secret_text
    writer.write(frames.GREETING)
    challenge = await frames.expect(reader, Kind.CHALLENGE, Challenge)
    nonce = secrets.token_bytes(frames.NONCE_BYTES)
    proof = frames.replica_proof(secret, challenge.nonce, nonce)
    hello = await _hello(options, store, segment_bytes, nonce=nonce, proof=proof)
    writer.write(frames.encode_message(Kind.HELLO, hello))
    kind, payload = await frames.read(reader)
    its_proof = frames.primary_proof(secret, challenge.nonce, nonce)
    if kind is Kind.REFUSE:
        refuse = frames.decode(payload, Refuse)
        is_proven = frames.is_proof(refuse.proof, its_proof)
        if refuse.parts_at is not None and is_proven:
            raise LogParts(refuse, refuse.parts_at)
        is_trusted = is_proven or not is_by_name
        raise _refused(refuse.reason, for_good=refuse.is_final and is_trusted)
    if kind is not Kind.ACCEPT:
        raise BadFrame(f"{kind.name} where ACCEPT must come")
    accept = frames.decode(payload, Accept)
    if not frames.is_proof(accept.proof, its_proof):
        raise _refused("what answers there does not know the secret", for_good=not is_by_name)
    if hello.end and accept.begin != hello.end:
        raise BadFrame(f"bytes from {accept.begin} on, where {hello.end} must come")
    return accept


def _refused(reason: str, *, for_good: bool) -> Exception:
    return FollowRefused(reason) if for_good else BadFrame(reason)


async def _hello(
    options: ReplicaOptions,
    store: LocalReplica | None,
    segment_bytes: int,
    *,
    nonce: bytes,
    proof: bytes,
) -> Hello:
    units_end, last_bytes = (0, b"") if store is None else await store.read_end()
    end = store.stored_offset() if store is not None and last_bytes else 0  # 0: it has nothing
    return Hello(
        version=frames.VERSION,
        node=options.node_name,
        nonce=nonce,
        proof=proof,
        segment_bytes=segment_bytes,
        end=end,
        units_end=min(units_end, end),
        last_bytes=last_bytes,
        epochs=[] if store is None else [(begin.epoch, begin.offset) for begin in store.epochs],
        heartbeat_ms=options.heartbeat_ms,
    )
