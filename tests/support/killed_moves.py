"""`escrowmq store import` and `export` that are killed in the middle."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import importlib, os, sys
module_name, name, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
module = importlib.import_module(f"app.store_moves.{module_name}")
call = getattr(module, name)
def killed(*given, **named):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    return call(*given, **named)
setattr(module, name, killed)
sys.argv = ["escrowmq", "store", sys.argv[4], "--from", sys.argv[5], "--to", sys.argv[6]]
from cli.main import main
main()
"""


def run_killed(
    operation: str, source: Path, target: Path, *, module: str, name: str, after: int
) -> None:
    """Run the command in a process that ends at a call of a function.

    `module`: in `app.store_moves`; `after`: the calls that are carried out before.
    """
    given = [module, name, str(after), operation, str(source), str(target)]
    killed = subprocess.run([sys.executable, "-c", _PROGRAM, *given], check=False)
    assert killed.returncode == 9
