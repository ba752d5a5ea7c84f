"""The files for containers: an image can be made of what they name, and the settings are those of a
service and its replicas.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml
from sqlalchemy import make_url

from app.names.nodes import identity_of
from app.settings import Settings, load
from cli import node
from tests.support.server import clean_environment

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"
DOCKERFILE = CONTAINERS / "Dockerfile"
GIVEN = {
    "ESCROWMQ_REGISTRY_PASSWORD": "secret",
    "ESCROWMQ_API_KEYS": '["a key of the operator"]',
    "ESCROWMQ_REPLICA__SECRET": "a secret of both machines",
}
SERVICES = ("shop-1", "shop-2", "shop-3")


def test_the_dockerfile_has_no_fault_that_a_linter_knows():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_image_copies_is_all_that_the_distribution_is_built_from(tmp_path):
    for sources in re.findall(
        r"^COPY (?!--from)(.*)$", DOCKERFILE.read_text("utf-8"), re.MULTILINE
    ):
        *names, target = sources.split()
        for name in names:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
                shutil.copytree(ROOT / name, tmp_path / target, ignore=ignored)
            else:
                shutil.copy(ROOT / name, tmp_path / target)
    wheels = tmp_path / "wheels"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"),
            *("--no-build-isolation", "--wheel-dir", str(wheels), str(tmp_path)),
        ],
        env=clean_environment(),
        check=True,
    )

    (wheel,) = wheels.iterdir()
    built = set(ZipFile(wheel).namelist())
    modules = {
        f"escrowmq/_service/{path.relative_to(ROOT)}"
        for name in ("app", "audit", "cli", "console", "delivery", "scheduler", "storage", "txn")
        for path in (ROOT / name).rglob("*.py")
    }
    assert modules <= built
    assert "escrowmq/_service/app/problems.toml" in built
    assert any("migrations/versions/" in name for name in built)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CONTAINERS / "compose.yaml").read_text("utf-8"))
    return loaded


@pytest.fixture(scope="module")
def on_postgresql() -> dict[str, Any]:
    """The other file, which is merged with the first one."""
    path = CONTAINERS / "compose.postgresql.yaml"
    loaded: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return loaded


def filled_in(text: str) -> str:
    """As Compose does: the variable, or what stands behind it."""

    def value(match: re.Match[str]) -> str:
        name, how, rest = match.groups()
        assert how == "-" or name in GIVEN, f"{name} has no default, and the file says so"
        return GIVEN.get(name, rest)

    return re.sub(r"\$\{(\w+):([-?])([^}]*)\}", value, text)


def settings_of(compose: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a service of the file in a container of the image."""
    image = dict(re.findall(r"(ESCROWMQ_\w+)=(\S+)", DOCKERFILE.read_text("utf-8")))
    for variable in [one for one in os.environ if one.startswith("ESCROWMQ_")]:
        monkeypatch.delenv(variable)
    for variable, text in {**image, **compose["services"][name]["environment"]}.items():
        monkeypatch.setenv(variable, filled_in(text))
    return load(None)


@pytest.mark.parametrize("name", SERVICES)
def test_each_machine_has_settings_with_which_it_can_be_the_service(compose, name, monkeypatch):
    settings = settings_of(compose, name, monkeypatch)

    assert settings.replica.copies == 2
    assert settings.replica.node == name
    assert settings.replica.nodes == SERVICES
    assert settings.replica.set_aside, "it comes back by itself"
    node.check(settings)
    assert settings.names.servers == tuple(
        f"http://{other}:{settings.port}" for other in SERVICES if other != name
    )
    identity = identity_of(settings.names, settings.replica, host=settings.host, port=settings.port)
    assert identity.replication_address == f"{name}:10912"
    assert settings.data_dir == Path("/data")
    (port,) = compose["services"][name]["ports"]
    assert port == f"127.0.0.1:{settings.replica.advertise.rpartition(':')[2]}:{settings.port}"
    assert compose["services"][name]["volumes"] == [f"{name}:{settings.data_dir}"]


def test_the_machines_can_have_a_registry_on_a_server(compose, on_postgresql, monkeypatch):
    registry = on_postgresql["services"]["registry"]
    given = {name: filled_in(text) for name, text in registry["environment"].items()}
    for name in SERVICES:
        more = on_postgresql["services"][name]
        assert more["depends_on"] == {"registry": {"condition": "service_healthy"}}
        both = {**compose["services"][name]["environment"], **more["environment"]}
        merged = {"services": {name: {"environment": both}}}
        url = make_url(settings_of(merged, name, monkeypatch).registry_url)
        assert (url.host, url.database) == ("registry", given["POSTGRES_DB"])
        assert (url.username, url.password) == (given["POSTGRES_USER"], given["POSTGRES_PASSWORD"])
    assert registry["volumes"] == ["registry:/var/lib/postgresql"], "as images from 18 on have it"


def test_each_machine_is_what_its_directory_says(compose):
    assert {compose["services"][name]["command"] for name in SERVICES} == {"node"}


def test_a_container_without_keys_does_not_start(compose, monkeypatch):
    required = [
        name
        for name, text in compose["services"]["shop-1"]["environment"].items()
        if ":?" in str(text)
    ]

    assert sorted([*required, "ESCROWMQ_REGISTRY_PASSWORD"]) == sorted(GIVEN)
