"""Python: openapi-python-client, whose models and functions mypy finds no fault with."""

import sys

from tests.clients.generator import Generator
from tests.clients.workplace import ROOT, Workplace

_CONFIG = ROOT / "openapi" / "clients" / "openapi-python-client.yaml"
_OPTIONS = ("--meta", "none", "--fail-on-warning", "--config", _CONFIG)


def _generate(place: Workplace) -> None:
    command = ("openapi-python-client", "generate", "--path", "openapi.json")
    place.run("generate", *command, "--output-path", "generated", *_OPTIONS)


def _compile(place: Workplace) -> None:
    """Check the types; the generator's own client.py is not strict, so its errors are not read."""
    silent = place.folder / "mypy.ini"
    silent.write_text("[mypy]\nstrict = true\n[mypy-generated.client]\nignore_errors = true\n")
    place.run("compile", "mypy", "--config-file", silent, "live.py", "generated")


GENERATORS = (
    Generator(
        name="openapi-python-client",
        language="python",
        needs=(),
        suffix=".py",
        install=lambda place: None,
        generate=_generate,
        compile=_compile,
        live=(sys.executable, "live.py"),
    ),
)
