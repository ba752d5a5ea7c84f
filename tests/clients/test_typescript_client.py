"""Our client in TypeScript: compiled with the strictest settings, and its tests, alone and against
a live service and databases.
"""

import json
import re
import tomllib
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import URL, make_url

from tests.clients import typescript
from tests.clients.conftest import KEY, owner
from tests.clients.workplace import ROOT, Workplace, selected, skip_without
from tests.support import mysql
from tests.support.server import Server

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not selected("typescript"), reason="CLIENTS names other languages"),
]
SOURCE = ROOT / "clients" / "typescript"


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    """A service that may send checks to this machine, and wants a key."""
    environment = {
        "ESCROWMQ_API_KEYS": f'["{KEY}"]',
        "ESCROWMQ_WEBHOOK__ALLOWED_HOSTS": '["localhost"]',
    }
    with Server(tmp_path / "data", environment=environment) as running:
        yield running


@pytest.fixture
def databases(postgresql, tmp_path) -> Iterator[dict[str, str]]:
    """The environment in which the live tests find their databases."""
    found = {
        "DATABASES": "sqlite postgresql",
        "SQLITE_PATH": str(tmp_path / "shop.db"),
        **as_environment(make_url(postgresql.new_database())),
    }
    if not mysql.is_installed():
        yield found
        return
    with mysql.MySql() as server:
        found |= {"MYSQL_SOCKET": server.socket, "MYSQL_DATABASE": server.new_database()}
        yield found | {"DATABASES": "sqlite postgresql mysql"}


@pytest.fixture(scope="module")
def package() -> Workplace:
    """The package with its generated types, compiled."""
    skip_without("node", "npm")
    place = Workplace.copy_of(SOURCE, "typescript")
    typescript.install(place)
    types = ("openapi-typescript", "openapi.json", "--output", "src/generated/api.ts")
    place.run("generate", "npm", "exec", "--", *types)
    place.run("compile", "npm", "run", "build")
    return place


def test_the_typescript_client_is_formatted_and_passes_its_own_tests(package):
    package.run("format", "npm", "run", "format")
    tests = sorted((package.folder / "dist" / "test" / "unit").glob("*.test.js"))

    printed = package.run("unit", "node", "--test", *tests, environment={"OPENAPI": "openapi.json"})

    assert re.search(r"^# fail 0$", printed, re.MULTILINE)


def test_the_typescript_client_passes_its_tests_against_a_service_and_databases(
    package, server, databases
):
    environment = {"ESCROWMQ_URL": server.url, "ESCROWMQ_API_KEY": KEY, **databases}
    tests = sorted((package.folder / "dist" / "test" / "live").glob("*.test.js"))

    printed = package.run("live", "node", "--test", *tests, environment=environment)

    assert re.search(r"^# fail 0$", printed, re.MULTILINE)


def test_the_typescript_package_has_the_version_of_the_service_and_nothing_but_its_code(package):
    said = json.loads((SOURCE / "package.json").read_text("utf-8"))
    service = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    packed = json.loads(
        package.run("pack", "npm", "pack", "--dry-run", "--json", "--ignore-scripts")
    )

    assert said["version"] == service["version"]
    files = {file["path"] for file in packed[0]["files"]}
    assert {"dist/src/index.js", "dist/src/index.d.ts", "README.md"} <= files
    assert not [file for file in files if "test" in file]


def test_the_typescript_program_of_the_page_publishes_an_order_and_bills_it(
    package, server, postgresql
):
    (program,) = code_in("docs/clients.md")
    database = next(code for code in code_in("clients/typescript/README.md") if "pool =" in code)
    address = '"http://127.0.0.1:8080"'
    assert address in program
    page = package.folder / "page"
    page.mkdir()
    (page / "database.ts").write_text(database, "utf-8")
    (page / "program.ts").write_text(program.replace(address, f'"{server.url}"'), "utf-8")
    settings = {
        "extends": "../tsconfig.json",
        "compilerOptions": {"rootDir": "..", "outDir": "../dist", "noEmit": False},
        "include": ["*.ts"],
    }
    (page / "tsconfig.json").write_text(json.dumps(settings), "utf-8")
    package.run("page", "npm", "exec", "--", "tsc", "--project", "page")
    url = make_url(postgresql.new_database())
    with psycopg.connect(host=url.query["host"], user=url.username, dbname=url.database) as shop:
        shop.execute("CREATE TABLE shop_orders (order_id int)")
    with owner(server) as client:
        client.post("/v1/topics", json={"topic": "orders"}).raise_for_status()
        client.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}).raise_for_status()

    environment = {"ESCROWMQ_API_KEY": KEY, **as_environment(url)}
    printed = package.run("page", "node", "dist/page/program.js", environment=environment)

    assert printed == "bill order 7303\n"
    with owner(server) as client:
        found = client.get("/v1/transactions", params={"business_key": "order-7303"}).json()
        assert [one["state"] for one in found["items"]] == ["committed"]


def as_environment(url: URL) -> dict[str, str]:
    """Of a PostgreSQL server, as its clients read it."""
    return {
        "PGHOST": str(url.query["host"]),
        "PGUSER": str(url.username),
        "PGDATABASE": str(url.database),
    }


def code_in(page: str) -> list[str]:
    return re.findall(
        r"^```typescript\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
