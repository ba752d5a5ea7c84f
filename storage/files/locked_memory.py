"""Memory that the kernel does not swap out."""

import ctypes
import mmap
import os

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_mlock = getattr(_libc, "mlock", None)


def locked_memory(byte_count: int) -> tuple[mmap.mmap, OSError | None]:
    """Anonymous memory, resident on return where it could be locked; else also why it was not.

    It is unlocked with its last reference.
    """
    memory = mmap.mmap(-1, byte_count)
    if _mlock is None:
        return memory, OSError("this system has no mlock")
    address = np.frombuffer(memory, np.uint8).ctypes.data
    if _mlock(ctypes.c_void_p(address), ctypes.c_size_t(byte_count)):
        number = ctypes.get_errno()
        return memory, OSError(number, os.strerror(number))
    return memory, None
