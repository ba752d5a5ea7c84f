"""`python -m benchmarks.peers [PEER ...]`: those named, or all that this machine has."""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from benchmarks import bench, messages
from benchmarks.bench import Bench
from benchmarks.generator import NotOffered, Window
from benchmarks.peers import kafka, nats, rabbitmq, redis, rocketmq
from benchmarks.peers.comparison import GOALS, Comparison, best
from benchmarks.peers.peer import Peer, Running, Setting, Work
from benchmarks.peers.table import show, write
from benchmarks.report import show_machine
from benchmarks.rows import PULL, Command, constant

PEERS: dict[str, Peer] = {
    "redis": redis,
    "nats": nats,
    "rocketmq": rocketmq,
    "kafka": kafka,
    "rabbitmq": rabbitmq,
}
_WARM_SECONDS = 0.3


class Own(NamedTuple):
    """What is sent to the service, and the numbers of connections to try."""

    command: Command
    counts: tuple[int, ...]


def own_rows(durability: str) -> dict[str, Own]:
    send = "/v1/topics/load/messages"
    return {
        "single": Own(constant(send, messages.single(durability)), (64, 256)),
        "batch": Own(constant(send + "/batch", messages.batch(100, durability), 100), (8,)),
        "transaction": Own({"work": "transaction", "body": messages.begin("load")}, (64, 256)),
        "pull": Own(PULL, (8,)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description="Measure beside other brokers."
    )
    parser.add_argument(
        "peers", nargs="*", metavar="PEER", help=f"all of {', '.join(PEERS)} unless named"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds that a figure is the median of (3)"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement (2)")
    parser.add_argument(
        "--rows",
        type=lambda names: names.split(","),
        default=list(own_rows("synced")),
        help="single, batch, ...",
    )
    parser.add_argument(
        "--durability",
        choices=["synced", "buffered"],
        help="only peers' settings of this durability",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the table into this page, between its marks"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures to a file, too"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.peers if name not in PEERS]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    machine = show_machine()
    try:
        comparisons, absent = measure(given)
    except NotOffered as error:
        sys.stderr.write(f"{error}\n")
        return 1
    show(comparisons, absent)
    if given.write:
        write(given.write, machine, comparisons, absent)
    if given.json:
        found = [
            {**asdict(one), "ratio": one.ratio, "cpu_ratio": one.cpu_ratio} for one in comparisons
        ]
        given.json.write_text(json.dumps({"comparisons": found, "absent": absent}, indent=2) + "\n")
    return 0


def measure(given: argparse.Namespace) -> tuple[list[Comparison], dict[str, str]]:
    """All comparisons, and why a peer is absent, by its name.

    Raises NotOffered where there is nothing to make load with.
    """
    comparisons: list[Comparison] = []
    absent: dict[str, str] = {}
    with bench.opened() as opened:
        for name in given.peers or PEERS:
            peer = PEERS[name]
            try:
                version = peer.version()
            except NotOffered as error:
                absent[peer.name] = str(error)
                continue
            for setting in peer.settings:
                if given.durability in (None, setting.durability):
                    try:
                        comparisons += _beside(opened, peer, version, setting, given)
                    except RuntimeError as error:  # the others are still worth their time
                        absent[f"{peer.name}, {setting.text}"] = str(error)
    return comparisons, absent


def _beside(
    opened: Bench, peer: Peer, version: str, setting: Setting, given: argparse.Namespace
) -> list[Comparison]:
    """The peer with one setting and the service in turn."""
    sys.stderr.write(f"{peer.name} {version}, {setting.text}\n")
    directory = Path(tempfile.mkdtemp(dir=opened.directory)).resolve()
    try:
        with peer.started(setting, directory) as running:
            return [
                Comparison(
                    peer=peer.name,
                    version=version,
                    setting=setting.text,
                    durability=setting.durability,
                    row=work.row,
                    text=work.text,
                    peer_side=best(theirs),
                    own_side=best(ours),
                    goal=GOALS.get((peer.name, setting.name, work.row)),
                )
                for work in running.works
                if work.row in given.rows
                for theirs, ours in [
                    _rounds(opened, running, work, own_rows(setting.durability)[work.row], given)
                ]
            ]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _rounds(
    opened: Bench, running: Running, work: Work, own: Own, given: argparse.Namespace
) -> tuple[dict[int, list[Window]], dict[int, list[Window]]]:
    theirs: dict[int, list[Window]] = {count: [] for count in work.counts}
    ours: dict[int, list[Window]] = {count: [] for count in own.counts}
    _send(running, work, work.counts[0], warm_seconds=running.warm_seconds, seconds=given.seconds)
    for _ in range(given.rounds):
        for count, windows in theirs.items():
            windows.append(
                _send(running, work, count, warm_seconds=_WARM_SECONDS, seconds=given.seconds)
            )
        for count, windows in ours.items():
            windows.append(opened.run(own.command, count, given.seconds))
    return theirs, ours


def _send(running: Running, work: Work, connections: int, **times: float) -> Window:
    return running.load.run(
        running.pids, connections=connections, **running.command, **work.command, **times
    )


if __name__ == "__main__":
    sys.exit(main())
