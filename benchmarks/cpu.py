"""CPU times of processes and their threads, from /proc/PID/task/TID/schedstat: /proc/PID/stat
counts in hundredths.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE = _CORES[0]
LOAD_CORE = _CORES[1 % len(_CORES)]


class ThreadTime(NamedTuple):
    """Seconds since the thread began. `waiting`: ready to run while the core did something else."""

    name: str
    running: float
    waiting: float


Times = Mapping[int, ThreadTime]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes that are started meanwhile run on this core, with all their threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def thread_times(*pids: int, proc: Path = Path("/proc")) -> dict[int, ThreadTime]:
    """Times of all threads of the processes, by the thread's id.

    A thread that ends meanwhile is left out.
    """
    times = {}
    for pid in pids:
        for task in (proc / str(pid) / "task").iterdir():
            with suppress(OSError):
                running_ns, waiting_ns, _ = (task / "schedstat").read_text().split()
                name = (task / "comm").read_text().rstrip("\n")
                times[int(task.name)] = ThreadTime(
                    name, int(running_ns) / 1e9, int(waiting_ns) / 1e9
                )
    return times


def between(before: Times, after: Times) -> dict[int, ThreadTime]:
    """Times that passed from one reading to the other; a new thread began at 0."""
    zero = ThreadTime("", 0.0, 0.0)
    return {
        thread: ThreadTime(now.name, now.running - was.running, now.waiting - was.waiting)
        for thread, now in after.items()
        for was in [before.get(thread, zero)]
    }


def by_group(times: Times, group_of: Callable[[int, str], str]) -> dict[str, float]:
    """CPU seconds of the threads of each group; `group_of` takes a thread's id and name."""
    groups: dict[str, float] = {}
    for thread, time in times.items():
        group = group_of(thread, time.name)
        groups[group] = groups.get(group, 0.0) + time.running
    return groups


def running(times: Times) -> float:
    """CPU seconds of all threads."""
    return sum(time.running for time in times.values())


def process_tree(root: int, proc: Path = Path("/proc")) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found, pending = [], [root]
    while pending:
        pid = pending.pop()
        found.append(pid)
        pending += children.get(pid, [])
    return found
