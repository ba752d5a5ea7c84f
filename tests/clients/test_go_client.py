"""Our client in Go: its types generated, vetted, and its tests run against a live service."""

import re
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from tests.clients.conftest import KEY, owner
from tests.clients.go import CONFIGS
from tests.clients.once import sent_once
from tests.clients.workplace import DOCUMENT, ROOT, Workplace, selected, skip_without
from tests.support.server import Server

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not selected("go"), reason="CLIENTS names other languages"),
]
PAGE = (ROOT / "docs" / "clients.md").read_text("utf-8")
README = (ROOT / "clients" / "go" / "README.md").read_text("utf-8")
SNIPPET = """package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"escrowmq.dev/go"
	"escrowmq.dev/go/api"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"gorm.io/gorm"
)

type Order struct{{ ID string }}

var (
	_          api.Topic
	_          driver.RowsAffected
	_          = errors.As
	_          = fmt.Println
	_          = http.Handle
	_          = os.Getenv
	_          pgx.Tx
	_          *pgxpool.Pool
	_          = time.Second
	_          *gorm.DB
	insert     func(*sql.Tx, Order) error
	isDeadlock func(error) bool
)

{functions}

func use(...any) {{}}

func snippet(
	ctx context.Context, url string, client *escrowmq.Client, worker *escrowmq.Worker,
	db *sql.DB, orm *gorm.DB, markers *escrowmq.Markers, order Order,
) error {{
{body}
	{end}
}}

func main() {{}}
"""
GENERATE = ("go", "-C", "api", "run", "generate.go", CONFIGS / "oapi-codegen.yaml", DOCUMENT)


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    """A service that may send checks to this machine, and wants a key."""
    environment = {
        "ESCROWMQ_API_KEYS": f'["{KEY}"]',
        "ESCROWMQ_WEBHOOK__ALLOWED_HOSTS": '["127.0.0.1"]',
    }
    with Server(tmp_path / "data", environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def module() -> Workplace:
    """The module with its generated package."""
    skip_without("go", "gofmt")
    place = Workplace.copy_of(ROOT / "clients" / "go", "go")
    place.run("generate", *GENERATE, warnings=True)
    return place


@pytest.fixture(scope="module")
def live(module) -> Workplace:
    """A module of its own: a program that uses the client gets no driver of a database with it."""
    return Workplace(module.folder / "live")


def test_the_go_client_is_formatted_vetted_and_passes_its_own_tests(module):
    assert module.run("format", "gofmt", "-l", ".") == ""
    module.run("vet", "go", "vet", "./...", warnings=True)
    module.run("test", "go", "test", "./...", warnings=True)


def test_the_go_client_sends_once_what_the_python_client_sends_once(module):
    (table,) = re.findall(
        r"var SentOnce = \[\]string\{\n(.*?)\n\}",
        (module.folder / "api" / "operations.gen.go").read_text("utf-8"),
        re.DOTALL,
    )

    assert set(re.findall('"(.+)"', table)) == sent_once()


def test_the_go_client_passes_its_tests_against_a_service_and_databases(
    live, server, postgresql, mariadb
):
    database = make_url(postgresql.new_database())
    environment = {
        "ESCROWMQ_URL": server.url,
        "ESCROWMQ_API_KEY": KEY,
        "ESCROWMQ_TEST_POSTGRESQL": f"host={database.query['host']} port=5432 "
        f"user=escrowmq dbname={database.database}",
    }
    if mariadb is not None:
        address = f"root@unix({mariadb.socket})/{mariadb.new_database()}"
        environment["ESCROWMQ_TEST_MYSQL"] = address

    live.run("vet", "go", "vet", "./...", warnings=True)
    live.run("live", "go", "test", "-count=1", "./...", environment=environment, warnings=True)


def test_the_go_program_of_the_readme_publishes_an_order_and_handles_it(live, server):
    (program,) = re.findall(r"```go\n(package main\n.*?)```", README, re.DOTALL)
    address = '"http://127.0.0.1:8080"'
    assert address in program
    ours = program.replace(address, f'"{server.url}", escrowmq.WithAPIKey("{KEY}")')
    (live.folder / "page").mkdir(exist_ok=True)
    (live.folder / "page" / "main.go").write_text(ours, "utf-8")

    for _ in ("the first run", "the next"):
        printed = live.run("page", "go", "run", "./page", warnings=True)

        (order,) = re.fullmatch(r"bill (order-[A-Z2-7]+)\n", printed).groups()
        with owner(server) as client:
            found = client.get("/v1/transactions", params={"business_key": order}).json()["items"]
        assert [one["state"] for one in found] == ["committed"]


def test_the_go_snippets_of_the_pages_compile(live):
    snippets = re.findall(r"```go\n(.*?)```", PAGE + README, re.DOTALL)
    bodies = [snippet for snippet in snippets if not snippet.startswith("package main\n")]
    assert len(bodies) == 11
    for number, body in enumerate(bodies):
        folder = live.folder / f"snippet{number}"
        folder.mkdir(exist_ok=True)
        if re.search("^func ", body, re.MULTILINE):
            filled = SNIPPET.format(functions=body, body="", end="return nil")
        else:
            # What the reader goes on with is declared at the end of some.
            used = re.match(r"(\w+), err := .*\n(?!if err)|err := ", body)
            end = "" if used is None else f"use({used[1] or 'err'}, err); "
            end += "" if re.search("^return ", body, re.MULTILINE) else "return nil"
            filled = SNIPPET.format(functions="", body=body, end=end)
        (folder / "main.go").write_text(filled, "utf-8")

        live.run("snippet", "go", "vet", f"./snippet{number}", warnings=True)
