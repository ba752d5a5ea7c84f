"""Descriptors of the process: how many are open, how many there may be."""

import os
import resource

_ENDLESS = 1 << 20  # what a limit of infinity is taken for


def raise_limit() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard one; (the soft limit before, the limit that is
    in force).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _finite(hard)
    if _finite(soft) < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # a system that does not allow what it says
            return _finite(soft), _finite(soft)
    return _finite(soft), max(wanted, _finite(soft))


def count_open() -> int | None:
    """Number of descriptors that the process has open; None where the system does not say."""
    try:
        return len(os.listdir("/dev/fd")) - 1  # one is for looking
    except OSError:
        return None


def open_limit() -> int:
    """The limit of open files that is in force."""
    return _finite(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _finite(limit: int) -> int:
    return _ENDLESS if limit == resource.RLIM_INFINITY else limit
