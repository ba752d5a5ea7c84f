"""The half at which a broker that opens this store continues to check.

A broker checks in the order of the half queue, stores a copy of a half at the end of the queue for
each check, and notes its progress. If it is killed, its note is up to 5 s old: with this note it
would check each copy that it has stored since, and publish as many finals.
"""

import asyncio

from storage.errors import CorruptRecord, OffsetExpired
from txn.half_message import HALF_QUEUE
from txn.journal import Journal
from txn.transaction import Transaction

_TOGETHER = 1_000  # transactions that are looked at before others have their turn


async def asking_from(journal: Journal) -> int | None:
    """The first half that is the newest copy of an undecided one: every half before it is decided,
    or stored again later. None if no copy of a broker makes a difference.
    """
    first = journal.log.positions()[HALF_QUEUE]
    has_copies = False
    for count, transaction in enumerate(journal.table.behind(-1, only_open=True)):
        if transaction.sequence >= first:
            break  # so are the halves of all that were begun later
        if count % _TOGETHER == _TOGETHER - 1:
            await asyncio.sleep(0)
        own = transaction.messages[0].half_offset
        copies = sorted([copy for copy in transaction.former_halves if copy > own], reverse=True)
        has_copies = has_copies or bool(copies)
        first = min(first, await _first_of_newest(journal, transaction, copies))
    return first if has_copies else None


async def _first_of_newest(journal: Journal, transaction: Transaction, copies: list[int]) -> int:
    """The first of the newest copies. `copies`: copies that a broker has stored of its halves,
    newest first.
    """
    newest = {message.message_id: message.half_offset for message in transaction.messages}
    if not copies:
        return min(newest.values())
    if len(newest) == 1:
        return copies[0]
    found: dict[str, int] = {}
    for copy in copies:
        try:
            halves = await journal.store.read(HALF_QUEUE, copy, max_messages=1, max_bytes=1)
        except (CorruptRecord, OffsetExpired):
            continue  # it may be of any message: none is taken to be newer than it is known to be
        for half in halves:
            found.setdefault(half.message_id, half.queue_offset)
        if found.keys() >= newest.keys():
            break
    return min((newest | found).values())
