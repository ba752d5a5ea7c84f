"""`python -m benchmarks.named_service serve ...`: the service, whose threads have their names in
/proc/PID/task/TID/comm.

Python 3.11 keeps the name of a thread to itself.
"""

import sys
import threading
from pathlib import Path
from types import FrameType

from cli.main import main


def _name_thread(_frame: FrameType, _event: str, _argument: object) -> None:
    """The first event of a new thread's profile: no other is wanted."""
    sys.setprofile(None)
    comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    comm.write_text(threading.current_thread().name[:15])


if __name__ == "__main__":
    threading.setprofile(_name_thread)
    main()
