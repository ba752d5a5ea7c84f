"""What `pip install` brings: all that the service needs, and the fixtures."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".*", "build", "data", "*.egg-info", "__pycache__", "node_modules"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The contents of the wheel, as they would lie in site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "source", ignore=LEFT_OUT)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        folder,
        folder / "source",
    ]
    done = subprocess.run(wheel, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("escrowmq-*.whl")
    shutil.unpack_archive(made, folder / "installed", "zip")
    return folder / "installed"


def test_the_wheel_has_every_package_and_every_migration(installed):
    code = (
        "import json, app.registry.database as d, app.problems as p, cli.main, escrowmq_client.webhooks, "
        "pytest_escrowmq.service as s\n"
        "print(json.dumps([str(d.MIGRATIONS), len(p.PROBLEMS), s.__file__]))"
    )
    environment = os.environ | {"PYTHONPATH": str(installed)}

    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    migrations, problems, service = json.loads(done.stdout)
    assert Path(migrations).is_relative_to(installed)
    assert Path(service).is_relative_to(installed)
    assert problems
    ours = {path.relative_to(ROOT / "alembic") for path in (ROOT / "alembic").rglob("*.py")}
    assert {path.relative_to(migrations) for path in Path(migrations).rglob("*.py")} == ours


def test_the_wheel_of_the_service_makes_its_registry(installed, tmp_path):
    code = (
        "import asyncio, sys; from app.registry.database import Database; "
        "asyncio.run(Database(sys.argv[1]).open())"
    )
    command = [sys.executable, "-P", "-c", code, f"sqlite:///{tmp_path}/registry.db"]

    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(installed)},
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_pytest_finds_the_fixtures_and_nothing_asks_for_pytest(installed):
    (information,) = installed.glob("*.dist-info")

    entry_points = (information / "entry_points.txt").read_text("utf-8")
    metadata = (information / "METADATA").read_text("utf-8")

    assert "[pytest11]\nescrowmq = pytest_escrowmq.plugin" in entry_points
    assert "Requires-Dist: pytest" not in metadata
    assert not (installed / "tests").exists()
