"""Java 17: openapi-generator with java.net.http ("native")."""

from pathlib import Path

from tests.clients.generator import Generator
from tests.clients.workplace import ROOT, Workplace

VERSION = "7.25.0"
CONFIG = ROOT / "openapi" / "clients" / "openapi-generator-java.yaml"


def install(place: Workplace) -> None:
    jar = f"-Dartifact=org.openapitools:openapi-generator-cli:{VERSION}"
    place.run("install", "mvn", "-q", "-B", "dependency:copy", jar, "-DoutputDirectory=cache")


def generate(place: Workplace) -> None:
    run_generator(place, CONFIG)


def run_generator(place: Workplace, config: Path) -> None:
    """Generate a client; openapi-generator says of every document of OpenAPI 3.1 that it is beta."""
    jar = f"cache/openapi-generator-cli-{VERSION}.jar"
    source = ("-i", "openapi.json", "-c", config, "-o", "generated")
    place.run("generate", "java", "-jar", jar, "generate", *source, warnings=True)


def build(place: Workplace) -> None:
    """Compile with every warning of javac as an error, and put the libraries beside it."""
    place.run("compile", "mvn", "-q", "-B", "compile", "dependency:copy-dependencies")


GENERATORS = (
    Generator(
        name="openapi-generator-java",
        language="java",
        needs=("java", "mvn"),
        suffix=".java",
        install=install,
        generate=generate,
        compile=build,
        live=("java", "-cp", "target/classes:target/dependency/*", "Live"),
    ),
)
