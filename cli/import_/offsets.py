"""`escrowmq import offsets`: reads a broker's offsets, and sets those of a service as far as both
have the same messages.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

import msgspec

from app.messages.schemas import MAX_ENTRIES
from app.store_moves.broker_queues import BrokerQueues, MessageIdentity, NotReadable
from app.store_moves.offset_moves import (
    NOT_KEPT,
    NotComparable,
    OffsetMove,
    OnlyAtBroker,
    Outcome,
    of_clients,
    only_at_broker,
    plan_moves,
    same_end,
    to_compare,
    to_set,
    to_subscribe,
)
from cli.common import Exit, in_short, say
from cli.json_report import STDOUT, write_json
from escrowmq_client import Client, EscrowMQError, NotFound, ProblemError
from escrowmq_client.models.groups import Group, OffsetInput
from storage.errors import UnreadableConfig
from storage.files.vfs import ReadOnlyVfs
from storage.formats import consumer_offsets, names
from storage.formats.config_json import FileContent
from storage.formats.consumer_offsets import ConsumerOffsets, GroupQueue
from storage.local.broker import config_files
from storage.message import OffsetRange, QueueId

_SHOWN = 100
_READS, _READ_AGAIN_SECONDS = 11, 0.1
_NO_MESSAGE = ("offset_expired", "offset_beyond_end", "record_corrupt")


def run(
    source: Path,
    url: str,
    groups: Sequence[str],
    api_key: str | None,
    *,
    dry_run: bool,
    json_file: Path | None,
    quiet: bool,
) -> int:
    """The exit status."""
    try:
        found, backup = _read(source)
        offsets = of_clients(found, groups)
        with Client(url, api_key=api_key) as client:
            known = {one.group: one for one in client.items(client.list_groups)}
            bounds, current = _bounds(client, offsets), _current(client, offsets, known)
            broker = BrokerQueues(source)
            compared = broker.exist
            ends = _same_ends(client, broker, offsets, bounds) if compared else None
            moves = plan_moves(offsets, bounds, current, groups, ends)
            topics = to_subscribe(moves, {name for name, one in known.items() if one.topics})
            lacking = _only_at_broker(client, broker, offsets) if compared else []
            if not dry_run:
                _set(client, moves, topics)
    except (OSError, NotReadable, UnreadableConfig, EscrowMQError) as error:
        say(f"The offsets could not be imported: {in_short(error)}")
        return Exit.NOT_CARRIED_OUT
    counts = Counter(move.outcome for move in moves)
    report = {
        "report": "import_offsets",
        "source": str(source),
        "target": url,
        "dry_run": dry_run,
        "backup": backup,
        "compared": compared,
        "counts": {outcome.value: counts[outcome] for outcome in Outcome if counts[outcome]},
        "moves": msgspec.to_builtins(moves),
        "subscribed": topics,
        "only_at_broker": msgspec.to_builtins(lacking),
    }
    if backup:
        say(f"Warning: {backup}")
    write_json(json_file, report)
    if not quiet and json_file != STDOUT:
        show(moves, topics, lacking, sys.stdout, dry_run=dry_run, compared=compared)
    return Exit.FINDINGS if backup or lacking or NOT_KEPT & set(counts) else Exit.CLEAN


def show(
    moves: Sequence[OffsetMove],
    subscribed: Mapping[str, Sequence[str]],
    lacking: Sequence[OnlyAtBroker],
    out: TextIO,
    *,
    dry_run: bool,
    compared: bool,
) -> None:
    """The report as text: the offsets that are not set as they are, how many of each kind, and the
    groups that had no topics.
    """
    out.write("" if compared else _NOTHING_COMPARED)
    for move in [move for move in moves if move.outcome in NOT_KEPT][:_SHOWN]:
        where = f", {move.topic}/{move.queue_id}" if move.topic else ""
        goes_on = "" if move.to_offset is None else f": continues at {move.to_offset}"
        named = f"{move.outcome.value}: group {move.group}{where}"
        out.write(f"{named}, offset {move.broker_offset}{goes_on}{_why(move)}\n")
    out.writelines(
        f"only at the broker: group {one.group}: {one.count:,} {_LACKING[one.kind]}\n"
        for one in lacking[:_SHOWN]
    )
    counts = Counter(move.outcome for move in moves)
    out.write("".join(f"{counts[one]:>9,}  {_MEANING[one]}\n" for one in Outcome if counts[one]))
    out.write(f"{len(subscribed):>9,}  groups subscribed to their topics\n" if subscribed else "")
    is_changed = not dry_run and (to_set(moves) or subscribed)
    out.write("" if is_changed else "Nothing was changed.\n")


def _why(move: OffsetMove) -> str:
    if move.outcome is Outcome.OTHER_MESSAGES:
        return (
            f". The broker's queue has other messages from {move.differs_from} on; what the group"
            " consumed there and the service has, too, comes twice"
        )
    if move.outcome is Outcome.NOT_COMPARED:
        return ": not set, as the two sides have no message left to compare"
    return ""


_NOTHING_COMPARED = (
    "Warning: without the broker's store folder nothing was compared. If its queues got other "
    "messages than the service's since the import, new messages are skipped.\n"
)
_LACKING = {
    "retries": "retries. Let the broker's consumers finish them",
    "dead_letters": "dead letters. They do not come to the service",
}
_MEANING = {
    Outcome.ADVANCED: "offsets set",
    Outcome.UNCHANGED: "offsets where the group is, or is further, at the service",
    Outcome.EXPIRED: "offsets before the begin of their queues, set to the begin",
    Outcome.BEYOND_END: "offsets beyond the end of their queues, set to the end",
    Outcome.OTHER_MESSAGES: "offsets behind other messages, set to the first one that differs",
    Outcome.NOT_COMPARED: "offsets in queues that could not be compared, not set",
    Outcome.TOPIC_NOT_FOUND: "offsets in topics that do not exist",
    Outcome.QUEUE_NOT_FOUND: "offsets in queues that do not exist",
    Outcome.GROUP_NOT_FOUND: "groups without an offset at the broker",
    Outcome.NAME_NOT_ALLOWED: "offsets of groups whose names EscrowMQ does not allow",
    Outcome.RETRIES: "offsets in retry topics, which are not set: their messages may come twice",
}


def read_settled(
    file: Path, pause: Callable[[float], None] = time.sleep
) -> FileContent[ConsumerOffsets]:
    """Read a file that a running broker may be writing: it writes in place, within milliseconds.
    What is still damaged after a second stays so.
    """
    for _ in range(_READS - 1):
        try:
            found = config_files.find(ReadOnlyVfs(), file, consumer_offsets.read)
        except UnreadableConfig:
            found = None
        if found is not None and found.backup is None:
            return found
        pause(_READ_AGAIN_SECONDS)
    return config_files.find(ReadOnlyVfs(), file, consumer_offsets.read)


def _read(source: Path) -> tuple[Mapping[GroupQueue, int], str]:
    """The offsets, and a sentence if they are from the `.bak` of the file."""
    file = source / "config" / consumer_offsets.FILE if source.is_dir() else source
    found, backup = read_settled(file)
    if found is None:
        raise NotReadable(f"{file} does not exist, or is empty. {_which_folder(source)}")
    return found.by_queue(), "" if backup is None else (
        f"{file} is {backup.reason}, and its .bak was read: what the groups consumed at the broker "
        "since then comes twice"
    )


def _which_folder(source: Path) -> str:
    """Say which folder `--from` means, with the one below that looks like it."""
    meant = "--from is the folder that the broker's setting storePathRootDir names: it has config/"
    below = sorted(source.glob(f"*/config/{consumer_offsets.FILE}*"))
    return f"{meant}. Is it {below[0].parent.parent}?" if below else meant


def _bounds(client: Client, offsets: Mapping[GroupQueue, int]) -> dict[QueueId, OffsetRange]:
    """The queues of the topics that the service has."""
    found = {}
    known = {one.topic for one in client.items(client.list_topics)}
    for topic in sorted({place.topic for place in offsets} & known):
        for queue in client.list_queues(topic).items:
            found[QueueId(topic, queue.queue_id)] = OffsetRange(queue.min_offset, queue.max_offset)
    return found


def _current(
    client: Client, offsets: Mapping[GroupQueue, int], known: Mapping[str, Group]
) -> dict[GroupQueue, int]:
    """Where the groups are at the service. `known`: its groups."""
    found = {}
    for group in sorted({place.group for place in offsets} & known.keys()):
        for one in client.get_offsets(group).items:
            found[GroupQueue(group, one.topic, one.queue_id)] = one.offset
    return found


def _same_ends(
    client: Client,
    broker: BrokerQueues,
    offsets: Mapping[GroupQueue, int],
    bounds: Mapping[QueueId, OffsetRange],
) -> dict[QueueId, int | None]:
    """How far each queue has the same messages at both sides."""
    found: dict[QueueId, int | None] = {}
    for queue, offset in to_compare(offsets, bounds).items():
        try:
            at_broker = broker.bounds(queue)
        except NotReadable:
            found[queue] = None
            continue
        is_same = partial(_is_same, client, broker, queue)
        found[queue] = same_end(at_broker, bounds[queue], offset, is_same)
    return found


def _is_same(client: Client, broker: BrokerQueues, queue: QueueId, offset: int) -> bool:
    """Raises NotComparable."""
    try:
        page = client.pull_messages(
            queue.topic, queue.number, offset=offset, max_messages=1, payload="omit"
        )
        for found in page.messages:
            if found.queue_offset == offset:
                times = [round(at.timestamp() * 1000) for at in (found.born_at, found.stored_at)]
                own = MessageIdentity(found.message_id, *times)
                return own == broker.identity(queue, offset)
    except NotReadable as error:
        raise NotComparable(str(error)) from None
    except ProblemError as error:
        if error.code not in _NO_MESSAGE:
            raise
    raise NotComparable(f"the service has no message at {offset} of {queue}")


def _only_at_broker(
    client: Client, broker: BrokerQueues, offsets: Mapping[GroupQueue, int]
) -> list[OnlyAtBroker]:
    """Retries and dead letters of the groups that came into being after the import."""
    found = []
    for group in sorted({place.group for place in offsets if names.is_valid_name(place.group)}):
        try:
            lag = client.get_group_lag(group)
        except NotFound:
            lag = None
        queues = [] if lag is None else lag.queues
        ends = {QueueId(one.topic, one.queue_id): one.max_offset for one in queues}
        retries = 0
        for queue in broker.queues_of(names.retry_topic(group)):
            bounds = broker.bounds(queue)
            consumed = offsets.get(GroupQueue(group, *queue), 0)
            retries += max(0, bounds.end - max(bounds.first, consumed, ends.get(queue, 0)))
        dead = [broker.bounds(queue) for queue in broker.queues_of(names.dead_letter_topic(group))]
        found += only_at_broker(
            group,
            retries=retries,
            dead_letters=sum(one.end - one.first for one in dead),
            known_dead_letters=0 if lag is None else lag.dead_letters or 0,
        )
    return found


def _set(
    client: Client, moves: Sequence[OffsetMove], subscribed: Mapping[str, Sequence[str]]
) -> None:
    """A group that does not exist is created with its topics."""
    for group, topics in subscribed.items():
        client.put_group(group, topics=topics)
    for group, wanted in to_set(moves).items():
        entries = [
            OffsetInput(topic=move.topic, queue_id=move.queue_id, offset=move.to_offset)
            for move in wanted
            if move.to_offset is not None
        ]
        for begin in range(0, len(entries), MAX_ENTRIES):
            client.commit_offsets(group, entries[begin : begin + MAX_ENTRIES])
