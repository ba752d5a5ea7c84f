"""Our client in TypeScript: compiled with the strictest settings, and its tests, alone and against
a live service and databases.
"""

import itertools
import json
import re
import tomllib
from collections.abc import Iterator
from time import monotonic

import psycopg
import pytest
from sqlalchemy import URL, make_url

from tests.clients import typescript
from tests.clients.conftest import KEY, owner
from tests.clients.once import sent_once
from tests.clients.workplace import ROOT, Workplace, selected, skip_without
from tests.support.server import Server

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not selected("typescript"), reason="CLIENTS names other languages"),
]
SOURCE = ROOT / "clients" / "typescript"
README = "clients/typescript/README.md"
EXAMPLES = {  # of the README: what each has that those after it do not have
    "database": "new pg.Pool",
    "sqlite": "sqliteMarkers",
    "transaction": "client.transaction(",
    "server": "createServer",
    "webhook": "nodeCheckHandler",
    "checker": "new Checker(",
    "request": "client.request(",
    "reply": "client.reply(",
    "worker": "new Worker(",
    "keyed": "idempotencyKey",
    "adapter": "PgClient",
    "send": "client.send(",
}
SURROUNDED = {  # the names that an example takes from the program around it
    "sqlite": ("client", "database"),
    "server": ("markers", "secret"),
    "webhook": ("markers", "secret", "hono", "app", "express"),
    "checker": ("client", "markers", "signal"),
    "keyed": ("client",),
    "request": ("client",),
    "reply": ("client", "signal"),
}
DECLARATIONS = {
    "client": 'client: import("@escrowmq/client").EscrowMQ',
    "database": 'database: import("@escrowmq/client").SqliteDatabase',
    "markers": 'markers: import("@escrowmq/client").Markers',
    "signal": "signal: AbortSignal",
    "secret": "secret: string",
    "hono": """hono: {
      post(path: string, handler: (c: { req: { raw: Request } }) => Promise<Response>): void;
    }""",
    "app": """app: {
      post(
        path: string,
        parse: "parses",
        handler: (
          request: import("node:http").IncomingMessage & { body?: unknown },
          response: import("node:http").ServerResponse,
        ) => unknown,
      ): void;
    }""",
    "express": 'express: { raw(options: { type: string }): "parses" }',
}


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
def databases(postgresql, mariadb, tmp_path) -> dict[str, str]:
    """The environment in which the live tests find their databases."""
    found = {
        "DATABASES": "sqlite postgresql",
        "SQLITE_PATH": str(tmp_path / "shop.db"),
        **as_environment(make_url(postgresql.new_database())),
    }
    if mariadb is not None:
        found["DATABASES"] += " mysql"
        found |= {"MYSQL_SOCKET": mariadb.socket, "MYSQL_DATABASE": mariadb.new_database()}
    return found


@pytest.fixture(scope="module")
def package() -> Workplace:
    """The package with its generated types, compiled."""
    skip_without("node", "npm")
    place = Workplace.copy_of(SOURCE, "typescript")
    typescript.install(place)
    place.run("generate", "node", "generate.js", "openapi.json")
    place.run("compile", "npm", "run", "build")
    return place


def test_the_typescript_client_is_formatted_and_passes_its_own_tests(package):
    package.run("format", "npm", "run", "format")
    tests = sorted((package.folder / "dist" / "test" / "unit").glob("*.test.js"))

    printed = package.run("unit", "node", "--test", *tests, environment={"OPENAPI": "openapi.json"})

    assert re.search(r"^# fail 0$", printed, re.MULTILINE)


def test_the_console_is_formatted_by_the_same_rules(package):
    rules = ("--config", SOURCE / ".prettierrc")

    package.run("console", "npx", "prettier", *rules, "--check", ROOT / "console" / "static")


def test_the_typescript_client_sends_once_what_the_python_client_sends_once(package):
    (table,) = re.findall(
        r"SENT_ONCE: ReadonlySet<string> = new Set\(\[\n(.*?)\n\]\)",
        (package.folder / "src" / "generated" / "operations.ts").read_text("utf-8"),
        re.DOTALL,
    )

    assert set(re.findall('"(.+)"', table)) == sent_once()


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
    compile_examples(package, "page", {"program": at(server, program)})
    environment = environment_of(server, make_url(postgresql.new_database()))

    for _ in range(2):
        printed = package.run("page", "node", "dist/page/program.js", environment=environment)
        assert printed.startswith("bill order ")
        order_id = printed.split()[-1]
        assert states_of(server, order_id) == ["committed"]


def test_the_typescript_examples_of_the_readme_compile_and_its_programs_run(
    package, server, postgresql
):
    examples = {name: at(server, code) for name, code in readme_examples().items()}
    assert set(examples) == set(EXAMPLES)
    compile_examples(package, "readme", examples)
    environment = prepared_shop(server, postgresql)

    for name, expected in (("send", r"msg_\S+ \[ 'orders' \]\n"), ("transaction", "")):
        printed = package.run(name, "node", f"dist/readme/{name}.js", environment=environment)
        assert re.fullmatch(expected, printed), printed
    assert states_of(server, "order-7303") == ["committed"]
    with package.started("node", "dist/readme/worker.js", environment=environment) as worker:
        assert {worker.stdout.readline() for _ in range(2)} == {"bill 7301\n", "bill 7303\n"}
        worker.terminate()
        assert worker.wait(30) == 0
    with owner(server) as client:
        lag = client.get("/v1/groups/billing/lag").json()
    assert lag["messages_ready"] + lag["messages_leased"] + lag["messages_waiting"] == 0


def test_a_typescript_worker_reports_that_the_service_is_away_and_when_it_is_back(
    package, server, postgresql
):
    compile_examples(package, "outage", {"worker": readme_examples()["worker"]})
    environment = prepared_shop(server, postgresql)
    send_order(server, 1)

    with package.started("node", "dist/outage/worker.js", environment=environment) as worker:
        lines = iter(worker.stdout.readline, "")
        assert next(lines) == "bill 1\n"
        server.kill()
        begun = monotonic()
        assert any("Unreachable: no response from POST" in line for line in lines)
        assert monotonic() - begun < 10
        server.start()
        send_order(server, 2)
        left = list(itertools.takewhile(lambda line: line != "bill 2\n", lines))
        worker.terminate()
        left += lines

    assert worker.returncode == 0
    assert sum("Unreachable" in line for line in left) == 0
    assert sum("EscrowMQ answers again" in line for line in left) == 1


def send_order(server: Server, order_id: int) -> None:
    with owner(server) as client:
        body = {"json": {"order_id": order_id}}
        client.post("/v1/topics/orders/messages", json=body).raise_for_status()


def prepared_shop(server: Server, postgresql) -> dict[str, str]:
    """Make the topic, the group and the database of the examples; return their environment."""
    url = make_url(postgresql.new_database())
    with psycopg.connect(host=url.query["host"], user=url.username, dbname=url.database) as shop:
        shop.execute("CREATE TABLE shop_orders (order_id int)")
    with owner(server) as client:
        client.post("/v1/topics", json={"topic": "orders"}).raise_for_status()
        client.put("/v1/groups/billing", json={"topics": [{"topic": "orders"}]}).raise_for_status()
    return environment_of(server, url)


def environment_of(server: Server, database: URL) -> dict[str, str]:
    service = {"ESCROWMQ_URL": server.url, "ESCROWMQ_API_KEY": KEY, "MQ_KEY": KEY}
    return service | as_environment(database)


def states_of(server: Server, business_key: str) -> list[str]:
    """Of the transactions with this business key."""
    with owner(server) as client:
        found = client.get("/v1/transactions", params={"business_key": business_key}).json()
    return [transaction["state"] for transaction in found["items"]]


def compile_examples(package: Workplace, folder: str, examples: dict[str, str]) -> None:
    """Compile them beside the package, as strictly as it."""
    page = package.folder / folder
    page.mkdir()
    for name, code in examples.items():
        (page / f"{name}.ts").write_text(code, "utf-8")
    settings = {
        "extends": "../tsconfig.json",
        "compilerOptions": {"rootDir": "..", "outDir": "../dist", "noEmit": False},
        "include": ["*.ts"],
    }
    (page / "tsconfig.json").write_text(json.dumps(settings), "utf-8")
    package.run(folder, "npm", "exec", "--", "tsc", "--project", folder)


def at(server: Server, program: str) -> str:
    """Replace the address of the service."""
    return program.replace('"http://127.0.0.1:8080"', f'"{server.url}"')


def readme_examples() -> dict[str, str]:
    """Map the name of each example of the README to its code."""
    found = {}
    for code in code_in(README):
        name = next(name for name, part in EXAMPLES.items() if part in code)
        assert name not in found, f"two examples look like {name}"
        declared = [f"declare const {DECLARATIONS[one]};\n" for one in SURROUNDED.get(name, ())]
        found[name] = "".join(declared) + code
    return found


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
