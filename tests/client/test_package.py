"""What importing the package brings, and what it needs."""

import subprocess
import sys
from collections.abc import Set

import pytest

import escrowmq_client
from tests.house.source import ROOT, imported, modules

NEEDS = {"escrowmq_client", "httpx", "msgspec"}
# What some files need in addition, which only its users import.
EXTRAS = {"aiohttp", "django", "fastapi", "opentelemetry", "sqlalchemy", "starlette", "yarl"}


def loaded(statement: str, names: Set[str] = frozenset({"httpx", "msgspec"})) -> set[str]:
    """Those of the modules that a program with this statement has imported."""
    program = f"import sys\n{statement}\nprint(*{set(names)!r} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_signing_needs_nothing_but_the_standard_library():
    assert loaded("from escrowmq_client.webhooks import sign") == set()


def test_the_package_imports_what_it_is_asked_for():
    assert loaded("import escrowmq_client") == set()
    assert loaded("from escrowmq_client import ProblemError") == {"msgspec"}
    assert loaded("from escrowmq_client import Client") == {"httpx", "msgspec"}


@pytest.mark.parametrize("name", escrowmq_client.__all__)
def test_every_name_of_the_package_can_be_imported(name):
    assert getattr(escrowmq_client, name) is not None
    assert name in dir(escrowmq_client)


def test_the_errors_of_the_client_have_one_base_and_are_in_the_table_of_the_page():
    page = (ROOT / "docs" / "python-client.md").read_text("utf-8")
    table = page.partition("\n## Errors\n")[2].partition("\nAll are `EscrowMQError`")[0]
    values = [getattr(escrowmq_client, name) for name in escrowmq_client.__all__]
    errors = {one for one in values if isinstance(one, type) and issubclass(one, Exception)}
    raised_by_handlers = {escrowmq_client.RetryLater, escrowmq_client.DeadLetter}

    for error in errors - raised_by_handlers - {escrowmq_client.EscrowMQError}:
        assert issubclass(error, escrowmq_client.EscrowMQError), error
        assert f"`{error.__name__}`" in table, error


def test_the_client_needs_httpx_and_msgspec_and_nothing_else():
    allowed = NEEDS | EXTRAS | set(sys.stdlib_module_names)
    found = {name for module in modules("client").values() for name in imported(module)}
    assert found <= allowed

    core = "from escrowmq_client import AsyncClient, AsyncWorker, Client, Worker"
    assert loaded(core, EXTRAS) == set()
