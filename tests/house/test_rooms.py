"""The floors and rooms of the house: who may import what, and who may ask the machine for time,
chance, files and threads.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import (
    LOWER_FLOORS,
    PRODUCT,
    ROOMS,
    ROOT,
    called,
    dotted,
    imported,
    modules,
    nodes,
)

pytestmark = pytest.mark.xdist_group("source")  # one worker parses it, once

MOST_BESIDE_THE_ROOMS = 14  # files of delivery
MOST_POSITIONAL_ARGUMENTS = 6  # of a constructor, beside self

# What the lower floors get handed in (a clock, a Vfs, randomness, a runner), and the one room of
# each that speaks of it itself.
AT_HOME = {
    "time": {"storage/clock.py"},
    "datetime": {"scheduler/cron_line.py"},  # the calendar; it is told the time
    "random": {"storage/identifiers.py", "storage/files/simulated.py"},
    "secrets": set(),
    "uuid": set(),
    # files; how a thread of the engine wakes the loop, for which a simulation has its own runner;
    # and memory, which a simulation takes from the machine, too
    "os": {
        "storage/files/locked_memory.py",
        "storage/files/vfs.py",
        "storage/local/lanes/event_loop.py",
    },
    "fcntl": {"storage/files/vfs.py"},
    "mmap": {"storage/files/locked_memory.py", "storage/files/vfs.py"},
    "io": set(),
    "shutil": set(),
    "tempfile": set(),
    "socket": set(),
    "subprocess": set(),
    "threading": {
        "storage/files/handles.py",
        "storage/files/write_pool.py",
        "storage/local/lanes/event_loop.py",
        "storage/local/log/ranges.py",
    },
    "concurrent": {"storage/files/vfs.py"},
}
# Below the seam everything is plain and synchronous; these are the bridge (house: async above the
# seam, threads below it).
_BRIDGE = (
    "engine", "local_store", "read/reader", "append/offset_commits", "lanes/futures",
    "lanes/event_loop",
)  # fmt: skip
# And these keep order among those who wait, for the floors above the seam.
_FOR_THE_FLOORS_ABOVE = {
    "storage/derived_table.py",
    "storage/keyed_locks.py",
    "storage/keyed_conditions.py",
    "storage/opening.py",
    "storage/queue_scan.py",
}
KNOW_ASYNCIO = {
    "storage/memory.py",
    *_FOR_THE_FLOORS_ABOVE,
    *(f"storage/local/{part}.py" for part in _BRIDGE),
}


def test_the_import_contracts_hold():
    lint_imports = Path(sys.executable).with_name("lint-imports")

    done = subprocess.run(
        [lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


NOT_AT_THE_START = {
    "alembic",
    "lark",
    "matplotlib",
    "pyarrow",
    "pyspark",
    "sqlalchemy.dialects.postgresql",
}


def test_a_start_loads_nothing_that_most_starts_have_no_use_for():
    source = f"import sys, cli.main, cli.serve; print(*{NOT_AT_THE_START!r} & set(sys.modules))"

    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("\n", "")


def test_of_the_client_the_service_loads_the_signatures_of_webhooks_alone():
    source = (
        "import sys, cli.main, cli.serve; "
        "print(*sorted(name for name in sys.modules if name.startswith('escrowmq_client')))"
    )

    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("escrowmq_client escrowmq_client.webhooks\n", "")


def test_help_comes_without_the_service():
    source = (
        "import sys, cli.main; print(*{'app.settings', 'fastapi', 'httpx', 'numpy', "
        "'pydantic'} & set(sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("\n", "")


@pytest.mark.parametrize("name", AT_HOME)
def test_the_lower_floors_ask_the_machine_in_its_one_room_only(name):
    users = {
        path for path, module in modules(*LOWER_FLOORS).items() if name in set(imported(module))
    }

    assert users == AT_HOME[name]


def test_the_simulated_disk_is_given_its_randomness():
    module = modules("storage")["storage/files/simulated.py"]

    assert not [name for name, _ in called(module) if name in ("Random", "random.Random")]


def test_no_file_is_opened_past_the_vfs():
    past = {
        "open",
        "Path.open",
        "Path.read_bytes",
        "Path.read_text",
        "Path.write_bytes",
        "Path.write_text",
    }

    for path, module in modules(*LOWER_FLOORS).items():
        names = {
            alias.name
            for node in nodes(module)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert "Path" not in names, f"{path}: a Path touches the disk, a PurePath does not"
        assert not past & {name for name, _ in called(module)}, path


def test_below_the_seam_only_the_bridge_knows_asyncio():
    assert {
        path for path, module in modules("storage").items() if "asyncio" in set(imported(module))
    } == KNOW_ASYNCIO


def test_only_the_settings_read_the_environment():
    readers = {
        path
        for path, module in modules(*PRODUCT).items()
        for node in nodes(module)
        if isinstance(node, ast.Attribute)
        and dotted(node) in ("os.environ", "os.getenv", "os.environb")
    }

    # The fixtures find the service by it, and hand it on to the process that they start; the audit
    # hands its own on to Spark's, and the command the path of its packages to all of them.
    handing_on = {
        "escrowmq/__main__.py",
        "pytest_escrowmq/executable.py",
        "pytest_escrowmq/service.py",
        "audit/spark/java.py",
        "audit/spark/session.py",
    }
    # The client is part of another program, and reads where the service is.
    client = "client/escrowmq_client/transport.py"
    assert readers == {"app/settings.py", client, *handing_on}


def test_every_file_begins_by_saying_what_it_is_for():
    silent = [
        path
        for path, module in modules(*ROOMS).items()
        if module.body and not ast.get_docstring(module)
    ]

    assert silent == []


def test_delivery_stays_in_rooms():
    """A room of fifty files has no order that a reader could see."""
    files = list((ROOT / "delivery").glob("*.py"))

    assert len(files) <= MOST_BESIDE_THE_ROOMS, files


def test_no_constructor_takes_more_than_six_positional_arguments():
    """A row of values at a call says nothing of what each one is."""
    too_many = [
        f"{path}: {owner.name} takes {count}"
        for path, module in modules(*PRODUCT).items()
        for owner in nodes(module)
        if isinstance(owner, ast.ClassDef)
        for part in owner.body
        if isinstance(part, ast.FunctionDef) and part.name == "__init__"
        if (count := len(part.args.posonlyargs + part.args.args) - 1) > MOST_POSITIONAL_ARGUMENTS
    ]

    assert too_many == []
