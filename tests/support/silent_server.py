"""A server that accepts connections and never answers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def silent_server() -> Iterator[int]:
    """Run one until the end of the block; its port."""
    held = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    held.append(listener.accept()[0])

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield listener.getsockname()[1]
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # a close does not wake what waits in accept
        accepting.join()
    for one in held:
        one.close()
