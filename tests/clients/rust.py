"""Rust: openapi-generator with reqwest."""

from tests.clients import java
from tests.clients.generator import Generator
from tests.clients.workplace import ROOT, Workplace

CONFIG = ROOT / "openapi" / "clients" / "openapi-generator-rust.yaml"


def generate(place: Workplace) -> None:
    java.run_generator(place, CONFIG)


def build(place: Workplace) -> None:
    # Without a lock, which would name the address of a registry for each crate.
    place.run("compile", "cargo", "build", "--quiet")


GENERATORS = (
    Generator(
        name="openapi-generator-rust",
        language="rust",
        needs=("cargo", "java", "mvn"),
        suffix=".rs",
        install=java.install,
        generate=generate,
        compile=build,
        live=("target/debug/live",),
    ),
)
