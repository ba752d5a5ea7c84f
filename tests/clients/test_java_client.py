"""Our client in Java: its types generated, compiled, and its tests run against a live service."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.clients.conftest import KEY, owner
from tests.clients.java import CONFIG
from tests.clients.once import sent_once
from tests.clients.relay import port_before
from tests.clients.workplace import ROOT, Workplace, selected, skip_without
from tests.support.server import Server

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not selected("java"), reason="CLIENTS names other languages"),
]
SETTINGS = ROOT / "clients" / "java" / "generator" / "options.yaml"
PAGE = (ROOT / "docs" / "clients.md").read_text("utf-8")
README = (ROOT / "clients" / "java" / "README.md").read_text("utf-8")
# A class around the snippets, with the parts of Spring and of servlets that they use.
AROUND = """import dev.escrowmq.client.*;
import java.io.*;
import java.sql.*;
import javax.sql.DataSource;

abstract class Snippets {{
  interface TransactionSynchronization {{
    int STATUS_ROLLED_BACK = 1;

    default void beforeCommit(boolean readOnly) {{}}

    default void afterCommit() {{}}

    default void afterCompletion(int status) {{}}
  }}

  static class TransactionSynchronizationManager {{
    static void registerSynchronization(TransactionSynchronization synchronization) {{}}
  }}

  static class DataSourceUtils {{
    static Connection getConnection(DataSource dataSource) {{
      throw new UnsupportedOperationException();
    }}
  }}

  @SuppressWarnings("serial")
  static class DataAccessResourceFailureException extends RuntimeException {{
    DataAccessResourceFailureException(String message, Throwable cause) {{
      super(message, cause);
    }}
  }}

  interface Request {{
    String getHeader(String name);

    InputStream getInputStream() throws IOException;
  }}

  interface Response {{
    void setStatus(int status);

    void setContentType(String type);

    OutputStream getOutputStream() throws IOException;
  }}

  record Order(String id) {{}}

  abstract void insert(Connection local, Order order);

  EscrowMQ client;
  Markers markers;
  DataSource dataSource;
  Order order;
  CheckHandler checks;
  Request request;
  Response response;
{methods}
}}
"""
STRICT = ("-Xlint:all", "-Werror", "-proc:none")
LIBRARIES = "target/classes:target/dependency/*"


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
def package() -> Workplace:
    """The package, compiled with each warning as an error, with its own tests passed."""
    skip_without("java", "javac", "mvn")
    place = Workplace.copy_of(ROOT / "clients" / "java", "java")
    document = f"-Descrowmq.document={place.folder / 'openapi.json'}"
    # openapi-generator says of every document of OpenAPI 3.1 that it is beta.
    goals = ("clean", "package", "dependency:copy-dependencies")
    place.run(
        "package",
        "mvn",
        "-q",
        "-B",
        *goals,
        document,
        warnings=True,
    )
    return place


def test_the_java_client_sends_once_what_the_python_client_sends_once(package):
    (table,) = package.folder.glob("target/generated-sources/**/invoker/Operations.java")
    (names,) = re.findall(r"SENT_ONCE =\n(.*?)\}\);", table.read_text("utf-8"), re.DOTALL)

    assert set(re.findall('"(.+)"', names)) == sent_once()


def test_the_java_client_is_generated_with_the_settings_that_the_page_gives_to_every_user():
    ours, page = (
        path.read_text("utf-8").partition("generatorName")[2] for path in (SETTINGS, CONFIG)
    )

    assert re.sub("templateDir: .*(?=globalProperties)", "", ours, flags=re.DOTALL) == page


def test_the_java_client_passes_its_tests_against_a_service_and_databases(
    package, server, postgresql, mariadb
):
    database = make_url(postgresql.new_database())
    with ExitStack() as ports:
        port = ports.enter_context(port_before(Path(database.query["host"]) / ".s.PGSQL.5432"))
        environment = {
            "ESCROWMQ_URL": server.url,
            "ESCROWMQ_API_KEY": KEY,
            "ESCROWMQ_TEST_POSTGRESQL": f"jdbc:postgresql://127.0.0.1:{port}/"
            f"{database.database}?user=escrowmq&sslmode=disable",
        }
        if mariadb is not None:
            port = ports.enter_context(port_before(Path(mariadb.socket)))
            address = f"jdbc:mariadb://127.0.0.1:{port}/{mariadb.new_database()}?user=root"
            environment["ESCROWMQ_TEST_MYSQL"] = address
        package.run(
            *("live", "mvn", "-q", "-B", "surefire:test", "-Dgroups=live"),
            environment=environment,
            warnings=True,
        )


def test_the_java_program_of_the_readme_publishes_an_order_and_handles_it(package, server):
    (program,) = re.findall(r"```java\n(import .*?\nclass Shop .*?)```", README, re.DOTALL)
    address = 'builder("http://127.0.0.1:8080")'
    assert address in program
    ours = program.replace(address, f'builder("{server.url}").apiKey("{KEY}")')
    (package.folder / "page").mkdir(exist_ok=True)
    (package.folder / "page" / "Shop.java").write_text(ours, "utf-8")

    package.run("page", "javac", *STRICT, "-cp", LIBRARIES, "-d", "page", "page/Shop.java")
    for _ in ("the first run", "the next"):
        printed = package.run("page", "java", "-cp", f"page:{LIBRARIES}", "Shop", warnings=True)

        (order,) = re.fullmatch(r"bill (order-[0-9a-f-]{36})\n", printed).groups()
        with owner(server) as client:
            found = client.get("/v1/transactions", params={"business_key": order}).json()["items"]
        assert [one["state"] for one in found] == ["committed"]


def test_the_java_snippets_of_the_pages_compile(package):
    snippets = re.findall(r"```java\n(.*?)```", PAGE + README, re.DOTALL)
    bodies = [snippet for snippet in snippets if not snippet.startswith("import ")]
    assert len(bodies) == 6
    methods = [f"  void s{n}() throws Exception {{\n{body}  }}" for n, body in enumerate(bodies)]
    (package.folder / "snippets").mkdir(exist_ok=True)
    source = package.folder / "snippets" / "Snippets.java"
    source.write_text(AROUND.format(methods="\n\n".join(methods)), "utf-8")

    package.run("snippets", "javac", *STRICT, "-cp", LIBRARIES, "-d", "snippets", source)
