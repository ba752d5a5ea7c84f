"""Go: oapi-codegen and ogen."""

from tests.clients.generator import Generator
from tests.clients.workplace import ROOT, Workplace

OAPI_CODEGEN = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
OGEN = "github.com/ogen-go/ogen/cmd/ogen@v1.24.0"
CONFIGS = ROOT / "openapi" / "clients"


def install(place: Workplace) -> None:
    """Get the packages of go.sum, and no others."""
    place.run("install", "go", "mod", "download", warnings=True)


def oapi_codegen(place: Workplace) -> None:
    (place.folder / "generated").mkdir()
    options = ("-config", CONFIGS / "oapi-codegen.yaml", "-o", "generated/client.go")
    place.run("generate", "go", "run", OAPI_CODEGEN, *options, "openapi.json")


def ogen(place: Workplace) -> None:
    options = ("--config", CONFIGS / "ogen.yml", "--target", "generated", "--package", "escrowmq")
    place.run("generate", "go", "run", OGEN, *options, "openapi.json")


def build(place: Workplace) -> None:
    place.run("compile", "go", "vet", "./...")
    place.run("compile", "go", "build", "-mod=readonly", "-o", "build/live", ".")


GENERATORS = tuple(
    Generator(
        name=name,
        language="go",
        needs=("go",),
        suffix=".go",
        install=install,
        generate=generate,
        compile=build,
        live=("build/live",),
    )
    for name, generate in (("oapi-codegen", oapi_codegen), ("ogen", ogen))
)
