"""What importing the package brings, and what it needs."""

import subprocess
import sys

import pytest

import escrowmq_client
from tests.house.source import ROOT, imported, modules

NEEDS = {"escrowmq_client", "httpx", "msgspec"}
# Each is imported by one file, which only its users import.
EXTRAS = {"opentelemetry": {"client/escrowmq_client/telemetry.py"}}


def loaded(statement: str) -> set[str]:
    """What a program with this statement has imported of what the client needs."""
    program = f"import sys\n{statement}\nprint(*{{'httpx', 'msgspec'}} & set(sys.modules))"
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
    assert getattr(escrowmq_client, name).__name__ == name
    assert name in dir(escrowmq_client)


def test_the_client_needs_httpx_and_msgspec_and_nothing_else():
    allowed = NEEDS | set(sys.stdlib_module_names)
    found = {
        (name, path)
        for path, module in modules("client").items()
        for name in imported(module)
        if name not in allowed
    }

    assert found == {(name, path) for name, paths in EXTRAS.items() for path in paths}
