"""What users' tests are given: the example of the page runs as it stands, and the fixture does what
the page says.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from pytest_escrowmq import service as service_of_fixture
from pytest_escrowmq.executable import VARIABLE, ServiceNotInstalled, find_executable
from pytest_escrowmq.service import EscrowMQ
from tests.support.http import ok

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
REAL = os.environ[VARIABLE]
EXAMPLE, EXAMPLE_OF_CLIENT, SETTINGS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run_pytest(
    folder: Path, source: str, ini: str = "", *options: str
) -> subprocess.CompletedProcess[str]:
    """In a project of its own, which knows nothing of this repository but what is installed."""
    (folder / "test_theirs.py").write_text(source, "utf-8")
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n", "utf-8")
    # Their packages may be called as ours are, and lie in front of them.
    for name in ("app", "cli", "client", "storage"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("NAME = 'theirs'\n", "utf-8")
    # Of what is installed here their project has the fixture alone.
    others = [
        f"-pno:{name}"
        for name in (
            "cacheprovider",
            "asyncio",
            "xdist",
            "schemathesis",
            "hypothesispytest",
            "anyio",
        )
    ]
    command = [sys.executable, "-m", "pytest", "-q", *others, *options]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


def test_the_worked_example_of_the_page_passes_in_a_project_of_its_own(tmp_path):
    done = run_pytest(tmp_path, EXAMPLE)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_the_example_with_the_python_client_passes_in_a_project_of_its_own(tmp_path):
    done = run_pytest(tmp_path, EXAMPLE_OF_CLIENT)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_neither_packages_nor_the_environment_of_the_project_get_in_the_way(tmp_path, monkeypatch):
    monkeypatch.setenv("ESCROWMQ_HTTP__MAX_BODY_BYTES", "10")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = (
        "def test_x(escrowmq):\n    import app, cli, client, storage\n"
        "    assert {app.NAME, cli.NAME, client.NAME, storage.NAME} == {'theirs'}\n    "
        "escrowmq.topic('orders')\n"
    )

    done = run_pytest(tmp_path, source)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_that_asks_for_no_service_imports_nothing_that_starts_one(tmp_path):
    source = (
        "import sys\n\ndef test_x():\n    assert not {'httpx', 'pytest_escrowmq.service', "
        "'fastapi'} & set(sys.modules)\n"
    )

    done = run_pytest(tmp_path, source)

    assert done.returncode == 0, done.stdout + done.stderr


SHARING = """
def test_one(escrowmq):
    escrowmq.topic("orders")
    escrowmq.drop("listTopics")
    escrowmq.kill()

def test_two(escrowmq):
    assert escrowmq.client.get("/v1/topics/orders").status_code == {status}
    assert escrowmq.client.get("/v1/topics").status_code == 200
"""


@pytest.mark.parametrize(("ini", "status"), [("", 404), ("escrowmq_scope = module", 200)])
def test_tests_share_a_service_only_where_they_want_to_and_never_its_faults(tmp_path, ini, status):
    done = run_pytest(tmp_path, SHARING.replace("{status}", str(status)), ini)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_scope_that_is_none_is_refused_with_those_that_there_are(tmp_path):
    done = run_pytest(tmp_path, "def test_x(escrowmq): pass", "escrowmq_scope = test")

    assert done.returncode != 0
    assert (
        "escrowmq_scope is one of function, class, module, package, session, not test"
        in done.stdout + done.stderr
    )


def test_the_settings_of_the_service_can_be_overridden_as_the_page_says(tmp_path):
    source = f"""import pytest

{SETTINGS}

def test_x(escrowmq):
    body = {{"producer_group": "shop", "messages": [{{"topic": "orders", "message": {{"json": 1}}}}]}}
    assert [escrowmq.client.post("/v1/transactions", json=body).status_code for _ in range(2)] == [201, 429]
"""

    done = run_pytest(tmp_path, source)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_service_that_wants_keys_is_asked_with_one(tmp_path):
    with EscrowMQ(tmp_path, {"ESCROWMQ_API_KEYS": '["one", "another"]'}) as service:
        topic = service.topic()

        assert service.client.get(f"/v1/topics/{topic}").status_code == 200
        assert httpx.get(f"{service.url}/v1/topics/{topic}", trust_env=False).status_code == 401


def test_a_service_that_does_not_start_says_why(tmp_path):
    source = (
        "import "
        f"pytest\n\n{SETTINGS.replace('ESCROWMQ_TXN__MAX_OPEN', 'ESCROWMQ_TXN__MAX')}\ndef "
        "test_x(escrowmq): pass\n"
    )

    done = run_pytest(tmp_path, source)

    assert done.returncode != 0
    assert "EscrowMQ ended with exit status 78" in done.stdout
    assert "unknown setting ESCROWMQ_TXN__MAX" in done.stdout


def test_a_service_that_was_killed_comes_back_at_its_address_with_its_store_and_its_time(escrowmq):
    topic = escrowmq.topic()
    url = escrowmq.url
    ok(escrowmq.client.post(f"/v1/topics/{topic}/messages", json={"payload": "x"}), 201)
    escrowmq.advance(days=3)
    before = escrowmq.now

    escrowmq.kill()
    assert not escrowmq.is_running
    with pytest.raises(httpx.TransportError):
        escrowmq.client.get("/livez")
    escrowmq.restart()

    assert escrowmq.url == url
    assert escrowmq.now >= before
    assert [message["payload"] for message in escrowmq.messages(topic)] == ["x"]


# --------------------------------------------------------------------------------------------------
# which program


def program(folder: Path, name: str = "escrowmq") -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n", "utf-8")
    path.chmod(0o755)
    return str(path)


def test_the_named_program_comes_first_then_the_environments_the_paths_and_this_interpreters(
    tmp_path, monkeypatch
):
    named, of_variable, on_path, beside = (
        program(tmp_path / name) for name in ("named", "variable", "path", "beside")
    )
    monkeypatch.setattr(sys, "executable", str(Path(beside).with_name("python")))
    monkeypatch.setenv(VARIABLE, of_variable)
    monkeypatch.setenv("PATH", str(Path(on_path).parent))

    assert find_executable(named) == named
    assert find_executable() == of_variable
    monkeypatch.delenv(VARIABLE)
    assert find_executable() == on_path
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_executable() == beside
    Path(beside).unlink()
    with pytest.raises(ServiceNotInstalled, match=r"uv tool install \."):
        find_executable()


def test_a_name_without_a_folder_is_searched_on_the_path_and_a_relative_one_from_here(
    tmp_path, monkeypatch
):
    older = program(tmp_path / "programs", "escrowmq-0.1")
    monkeypatch.setenv("PATH", str(Path(older).parent))
    monkeypatch.chdir(tmp_path)

    assert find_executable("escrowmq-0.1") == older
    assert find_executable("programs/escrowmq-0.1") == older
    with pytest.raises(FileNotFoundError, match=r"programs/escrowmq-0\.2"):
        find_executable("programs/escrowmq-0.2")


USING = "def test_x(escrowmq): escrowmq.topic()"
OVERRIDING = f"""import pytest

@pytest.fixture
def escrowmq_executable():
    return {REAL!r}

{USING}
"""


@pytest.mark.parametrize(
    ("source", "ini", "options", "outcome"),
    [
        (USING, "", [], "1 error"),
        (USING, "escrowmq_missing = skip", [], "1 skipped"),
        (USING, "escrowmq_exec = /no/such/program\nescrowmq_missing = skip", [], "1 error"),
        (USING, "escrowmq_missing = ignore", [], "escrowmq_missing is fail or skip, not ignore"),
        (USING, f"escrowmq_exec = {REAL}", [], "1 passed"),
        (USING, "escrowmq_exec = /no/such/program", [f"--escrowmq-exec={REAL}"], "1 passed"),
        (OVERRIDING, "escrowmq_exec = /no/such/program", [], "1 passed"),
    ],
)
def test_the_program_is_the_one_that_is_named_and_none_is_an_error_unless_it_may_be_missing(
    tmp_path, monkeypatch, source, ini, options, outcome
):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    # and beside this interpreter it is installed
    (tmp_path / "conftest.py").write_text("import sys\nsys.executable = '/nowhere/python'\n")

    done = run_pytest(tmp_path, source, ini, *options)

    assert outcome in done.stdout + done.stderr


def test_what_to_do_about_a_missing_service_is_said_once_and_not_by_each_test(
    tmp_path, monkeypatch
):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "conftest.py").write_text("import sys\nsys.executable = '/nowhere/python'\n")

    # The summary at the end repeats an error, at full length where it runs in a CI.
    done = run_pytest(tmp_path, f"{USING}\n{USING.replace('test_x', 'test_y')}", "", "-rN")

    assert "2 errors" in done.stdout
    assert done.stdout.count("uv tool install .") == 1
    assert done.stdout.count("the first error of this run says what to do") == 1


def test_a_service_of_another_version_is_refused_with_both_versions_and_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(service_of_fixture, "SERVICE_SERIES", "9.9")
    service = EscrowMQ(tmp_path)

    with pytest.raises(RuntimeError, match=r"is EscrowMQ 0\.1\.0, and this .* works with 9\.9\.x"):
        service.__enter__()

    assert not service.is_running
