"""TypeScript: openapi-typescript with openapi-fetch, and hey-api."""

from tests.clients.generator import Generator
from tests.clients.workplace import Workplace


def install(place: Workplace) -> None:
    """Install the packages of package-lock.json; npm may warn of the version of Node."""
    place.run("install", "npm", "ci", "--no-audit", "--no-fund", warnings=True)


def _npm(name: str) -> Generator:
    return Generator(
        name=name,
        language="typescript",
        needs=("node", "npm"),
        suffix=".ts",
        install=install,
        generate=lambda place: place.run("generate", "npm", "run", "generate"),
        compile=lambda place: place.run("compile", "npm", "run", "compile"),
        live=("node", "build/live.js"),
    )


GENERATORS = (_npm("openapi-typescript"), _npm("hey-api"))
