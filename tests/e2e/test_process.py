"""The service as a process: its keys, its settings, its exit status, its signals, its files."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

import cli.main
from tests.support.http import assert_problem, ok, until
from tests.support.live_files import states_of
from tests.support.server import Server
from tests.support.written_log import WrittenLog

KEYS = {"ESCROWMQ_API_KEYS": '["first-key", "zweiter-schlüssel", "clé à"]'}
PROBES = (
    "/livez",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/openapi-3.0.json",
    "/docs",
    "/docs/openapi.json",
    "/docs/assets/swagger-ui.css",
    "/ui/",
    "/ui/main.js",
    "/problems",
)


def outcome(server: Server) -> tuple[int, str]:
    """Of a process that ends by itself: its exit status and what it wrote."""
    server.start(until_ready=False)
    return server.wait(), server.log()


def escrowmq(*arguments: str) -> tuple[int, str]:
    """A run of the command in this process: its exit status and what it wrote."""
    done = CliRunner().invoke(cli.main.app, arguments)
    return done.exit_code, done.output


def last_line(log: str) -> str:
    return log.strip().splitlines()[-1]


# --------------------------------------------------------------------------------------------------
# keys


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("keys") / "data", environment=KEYS) as server:
        yield server


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Bearer first-key2",
        "first-key",
        "Basic first-key",
        "bearer:first-key",
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/topics"),
        ("POST", "/v1/transactions"),
        ("GET", "/v1/nothing"),
        ("GET", "/livezz"),
        ("GET", "/docsx"),
        ("OPTIONS", "/"),
    ],
)
def test_without_a_known_key_everything_but_the_probes_is_401(locked, method, path, authorization):
    headers = {} if authorization is None else {"Authorization": authorization}
    with locked.client() as api:
        answer = api.request(method, path, headers=headers)

    assert_problem(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer first-key",
        "bearer first-key",
        "Bearer zweiter-schlüssel",
        "Bearer  first-key",
        "Bearer clé à",
    ],
)
def test_with_any_of_the_keys_everything_is_open(locked, authorization):
    with locked.client() as api:
        assert (
            ok(api.get("/v1/topics", headers={"Authorization": authorization.encode()}))["items"]
            is not None
        )


@pytest.mark.parametrize("path", PROBES)
def test_the_probes_need_no_key(locked, path):
    with locked.client() as api:
        assert api.get(path).status_code == 200


def test_no_key_is_ever_in_the_log_but_that_some_are_short(locked):
    assert "first-key" not in locked.log()
    (warned,) = [line for line in locked.log().splitlines() if "api_keys_are_short" in line]
    assert "2" in warned


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_beyond_loopback_it_does_not_start_without_a_key(tmp_path, host):
    status, log = outcome(Server(tmp_path / "data", "--host", host))

    assert status == 78
    assert len(log.strip().splitlines()) == 1
    assert "ESCROWMQ_API_KEYS" in log
    assert host in log
    assert not (tmp_path / "data").exists()


def test_beyond_loopback_it_starts_with_a_key(tmp_path):
    with (
        Server(tmp_path / "data", "--host", "0.0.0.0", environment=KEYS) as server,
        server.client() as api,
    ):
        assert_problem(api.get("/v1/topics"), 401, "unauthenticated")
        ok(api.get("/v1/topics", headers={"Authorization": "Bearer first-key"}))


# --------------------------------------------------------------------------------------------------
# settings


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"ESCROWMQ_PROT": "80"}, ["ESCROWMQ_PROT", "did you mean ESCROWMQ_PORT?"]),
        # a client's, which may be meant for the service's own
        ({"ESCROWMQ_API_KEY": "k"}, ["ESCROWMQ_API_KEY", "did you mean ESCROWMQ_API_KEYS?"]),
        (
            {"ESCROWMQ_LOCAL__SEGMENT_BITES": "1"},
            ["ESCROWMQ_LOCAL__SEGMENT_BITES", "did you mean ESCROWMQ_LOCAL__SEGMENT_BYTES?"],
        ),
        ({"ESCROWMQ_LOCAL__SEGMENT_BYTES": "17"}, ["segment_bytes", "4096", "17"]),
        ({"ESCROWMQ_LOCAL__FLUSH": "never"}, ["ESCROWMQ_LOCAL__FLUSH", "before_ack", "interval"]),
        ({"ESCROWMQ_HTTP__MAX_WAITING": "-1"}, ["max_waiting", "at least 0"]),
        ({"ESCROWMQ_LOG_LEVEL": "loud"}, ["ESCROWMQ_LOG_LEVEL", "debug"]),
        ({"ESCROWMQ_API_KEYS": "a-secret"}, ["ESCROWMQ_API_KEYS", "JSON"]),
        ({"ESCROWMQ_API_KEYS": '["a-secret", ""]'}, ["ESCROWMQ_API_KEYS", "empty"]),
        ({"ESCROWMQ_API_KEYS": '["a-secret", 1]'}, ["ESCROWMQ_API_KEYS"]),
        ({"ESCROWMQ_API_KEYS": '["a-secret", " "]'}, ["ESCROWMQ_API_KEYS", "key 2", "blank"]),
        ({"ESCROWMQ_API_KEYS": '[" a-secret"]'}, ["ESCROWMQ_API_KEYS", "key 1", "blank"]),
        ({"ESCROWMQ_API_KEYS": '["a-secret\\t"]'}, ["ESCROWMQ_API_KEYS", "key 1", "blank"]),
        (
            {"ESCROWMQ_API_KEYS": '["a\\nsecret"]'},
            ["ESCROWMQ_API_KEYS", "key 1", "control character"],
        ),
        ({"ESCROWMQ_SCOPED_KEYS": "a-secret"}, ["ESCROWMQ_SCOPED_KEYS", "JSON"]),
        (
            {"ESCROWMQ_SCOPED_KEYS": '[{"name":"shop","key":"a-secret","scopes":["sent"]}]'},
            ["ESCROWMQ_SCOPED_KEYS", "scopes", "'send', 'receive'"],
        ),
        (
            {"ESCROWMQ_SCOPED_KEYS": '[{"name":"shop","key":"a-secret","scopes":[]}]'},
            ["ESCROWMQ_SCOPED_KEYS", "scopes"],
        ),
        (
            {"ESCROWMQ_SCOPED_KEYS": '[{"name":"shop","key":" a-secret","scopes":["send"]}]'},
            ["ESCROWMQ_SCOPED_KEYS", "shop", "blank"],
        ),
        (
            {
                "ESCROWMQ_SCOPED_KEYS": '[{"name":"shop","key":"a-secret","scopes":["send"],'
                '"topics":["order?"]}]'
            },
            ["ESCROWMQ_SCOPED_KEYS", "topics"],
        ),
        (
            {
                "ESCROWMQ_API_KEYS": '["a-secret"]',
                "ESCROWMQ_SCOPED_KEYS": '[{"name":"shop","key":"a-secret","scopes":["send"]}]',
            },
            ["ESCROWMQ_SCOPED_KEYS", "ESCROWMQ_API_KEYS as well"],
        ),
        (
            {
                "ESCROWMQ_SCOPED_KEYS": '[{"name":"shop","key":"a-secret","scopes":["send"]},'
                '{"name":"shop","key":"another-secret","scopes":["receive"]}]'
            },
            ["ESCROWMQ_SCOPED_KEYS", "one name"],
        ),
        (
            {"ESCROWMQ_HTTP__ALLOWED_HOSTS": '["https://mq.example.com"]'},
            ["ESCROWMQ_HTTP", "allowed_hosts"],
        ),
        (
            {
                "ESCROWMQ_HOST": "0.0.0.0",
                "ESCROWMQ_API_KEYS": '["a-secret"]',
                "ESCROWMQ_TESTING__ENABLED": "true",
            },
            ["ESCROWMQ_TESTING__ENABLED", "0.0.0.0"],
        ),
        (
            {"ESCROWMQ_WEBHOOK__ALLOWED_HOSTS": "a-secret"},
            ["ESCROWMQ_WEBHOOK__ALLOWED_HOSTS", "JSON"],
        ),
        ({"ESCROWMQ_DATABASE_URL": "a-secret"}, ["ESCROWMQ_DATABASE_URL", "no URL"]),
        (
            {"ESCROWMQ_DATABASE_URL": "postgresql+nothing://a:secret@b/c"},
            ["ESCROWMQ_DATABASE_URL", "no URL"],
        ),
        (
            {"ESCROWMQ_DATABASE_URL": "mssql+nothing://a:secret@b/c"},
            ["ESCROWMQ_DATABASE_URL", "no URL"],
        ),
        *(
            ({"ESCROWMQ_DATABASE_URL": url}, ["ESCROWMQ_DATABASE_URL", "no URL"])
            for url in ("mysql://a:secret@b/c", "postgresql://a:b@c:secret/d")
        ),
        *(
            ({"ESCROWMQ_DATABASE_URL": url}, ["ESCROWMQ_DATABASE_URL", "path of a file"])
            for url in (
                "sqlite://",
                "sqlite:///",
                "sqlite:///:memory:",
                "sqlite:///file:secret?mode=memory&uri=true",
            )
        ),
        ({"ESCROWMQ_CONFIG": "/nowhere.toml"}, ["/nowhere.toml", "does not exist"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_setting_is_78_with_one_line_that_names_it(tmp_path, environment, words):
    status, log = outcome(Server(tmp_path / "data", environment=environment))

    assert status == 78
    assert len(log.strip().splitlines()) == 1
    assert all(word in log for word in words), log
    assert "secret" not in log


def test_a_settings_file_that_is_not_utf_8_is_78_with_one_line(tmp_path):
    config = tmp_path / "escrowmq.toml"
    config.write_bytes('# schlüssel\napi_keys = ["a-secret"]\n'.encode("latin-1"))

    status, log = outcome(Server(tmp_path / "data", "--config", str(config)))

    assert status == 78
    assert log.strip().splitlines() == [log.strip()]
    assert "UTF-8" in log
    assert str(config) in log


@pytest.mark.parametrize("name", ["größe", "not-unicode-\udcff"])
def test_a_path_that_the_terminal_cannot_show_ends_no_command(tmp_path, name):
    store = WrittenLog(tmp_path / name / "store").close()
    report = tmp_path / "report.json"

    def verify(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "escrowmq", "store", "verify", str(store), *arguments],
            env=os.environ | {"PYTHONIOENCODING": "ascii"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert name.encode("ascii", "backslashreplace").decode() in verify("--json", str(report))
    assert json.loads(verify("--json", "-"))["store"] == str(store)
    assert json.loads(report.read_text("utf-8"))["store"] == str(store)


def test_a_store_given_as_the_data_directory_is_refused_and_left_alone(tmp_path):
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)

    status, log = outcome(Server(store))

    assert status == 78
    assert "the data directory is the folder that has a store" in log
    assert [path.name for path in store.iterdir()] == ["commitlog"]


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path):
    config = tmp_path / "escrowmq.toml"
    config.write_text(
        'log_format = "json"\nlog_level = "debug"\ndev = false\n[http]\nmax_waiting = '
        "3\nmax_body_bytes = 5000\n"
    )
    environment = {"ESCROWMQ_HTTP__MAX_WAITING": "4", "ESCROWMQ_PORT": "1"}
    with (
        Server(tmp_path / "data", "--config", str(config), environment=environment) as server,
        server.client() as api,
    ):
        assert ok(api.post("/v1/topics/made-by-use/messages", json={"payload": "x"}), 201)
        assert_problem(
            api.post("/v1/topics/made-by-use/messages/raw", content=bytes(5_001)),
            413,
            "body_too_large",
        )
        settings = next(line for line in server.log().splitlines() if '"event": "settings"' in line)

    assert '"max_waiting": 4' in settings
    assert f'"port": {server.port}' in settings


# --------------------------------------------------------------------------------------------------
# exit status


def test_a_second_process_on_the_directory_is_73_and_does_the_first_no_harm(tmp_path):
    with Server(tmp_path / "data") as first, first.client() as api:
        ok(api.post("/v1/topics/orders/messages", json={"payload": "x", "queue_id": 0}), 201)

        status, log = outcome(second := Server(tmp_path / "data"))

        assert status == 73
        assert "in use" in log
        assert str(first.pid) in log
        assert second.port != first.port
        ok(api.post("/v1/topics/orders/messages", json={"payload": "y", "queue_id": 0}), 201)
        assert len(ok(api.get("/v1/topics/orders/queues/0/messages"))["messages"]) == 2


def test_a_port_that_is_taken_is_69_and_nothing_is_made(tmp_path):
    with socket.socket() as taken:
        server = Server(tmp_path / "data")
        # beside what reserves it for the server
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", server.port))
        taken.listen()

        status, log = outcome(server)

    assert status == 69
    assert str(server.port) in log
    assert not (tmp_path / "data").exists()


def test_an_address_of_another_machine_is_69(tmp_path):
    status, log = outcome(Server(tmp_path / "data", "--host", "192.0.2.1", environment=KEYS))

    assert status == 69
    assert "192.0.2.1" in log


@pytest.mark.parametrize("folder", ["file", "file/data", "/proc/data"])
def test_a_data_directory_that_cannot_be_made_is_78(tmp_path, folder):
    (tmp_path / "file").write_text("in the way")

    server = Server(tmp_path / folder)
    server.log_path = tmp_path / "log"
    status, log = outcome(server)

    assert status == 78, log
    assert str(tmp_path / folder) in log
    assert "Traceback" not in log


def test_a_log_of_dledger_is_65_and_no_repair_is_suggested(tmp_path):
    data = tmp_path / "data" / "store" / "dledger-n0" / "data"
    data.mkdir(parents=True)
    (data / f"{0:020d}").write_bytes(b"\x01")

    status, log = outcome(Server(tmp_path / "data"))

    assert status == 65, log
    assert "found a log of DLedger" in log
    assert "none: let a broker serve this store" in log
    assert "store repair" not in log


def test_a_damaged_store_is_65_with_the_place_in_the_log(tmp_path):
    data = tmp_path / "my data"  # a command with it can be typed as it is shown
    with Server(data) as server, server.client() as api:
        for number in range(20):
            ok(
                api.post(
                    "/v1/topics/orders/messages",
                    json={"payload": "x" * 500, "queue_id": 0, "key": f"k{number}"},
                ),
                201,
            )
        offset = ok(api.get("/v1/topics/orders/queues"))["items"][0]["max_offset"]
        assert offset == 20
        receipt = ok(
            api.post("/v1/topics/orders/messages", json={"payload": "y" * 500, "queue_id": 0}), 201
        )
        ok(api.post("/v1/topics/orders/messages", json={"payload": "z" * 500, "queue_id": 0}), 201)
        server.kill()
        segment = data / "store" / "commitlog" / f"{0:020d}"
        flip(segment, receipt["log_offset"] + 300)

        status, log = outcome(server)

    assert status == 65, log
    assert str(segment) in log
    assert re.search(r"log offset \d+", log)
    assert "Traceback" not in log
    command = re.search(r"escrowmq (store repair '.+?' --blank-unit \d+)", log)
    assert command is not None, log

    status, listed = escrowmq("store", "repair", str(data))
    assert (status, command.group(1) in listed) == (1, True), listed
    status, done = escrowmq(*shlex.split(command.group(1)))
    assert (status, "lost: orders, queue 0, offsets 20 to 20" in done) == (0, True), done
    with Server(data) as server, server.client() as api:
        assert escrowmq("store", "repair", str(data))[0] == 73
        page = ok(api.get("/v1/topics/orders/queues/0/messages", params={"offset": 21}))
        assert [message["payload"][0] for message in page["messages"]] == ["z"]
        assert_problem(
            api.get("/v1/topics/orders/queues/0/messages", params={"offset": 20}),
            500,
            "record_corrupt",
        )
        assert (
            len(
                ok(api.get("/v1/topics/orders/queues/0/messages", params={"max_messages": 20}))[
                    "messages"
                ]
            )
            == 20
        )
        assert server.terminate() == 0
    status, verified = escrowmq("store", "verify", str(data))
    assert (status, "no findings" in verified) == (0, True), verified


def test_a_log_without_its_first_segment_is_65_until_a_repair_accepts_it_and_no_offset_is_used_again(
    tmp_path,
):
    with Server(tmp_path / "data") as server, server.client() as api:
        for number in range(3):
            ok(
                api.post(
                    "/v1/topics/orders/messages", json={"payload": f"{number}", "queue_id": 0}
                ),
                201,
            )
        assert server.terminate() == 0
        (tmp_path / "data" / "store" / "commitlog" / f"{0:020d}").unlink()

        status, log = outcome(server)

    assert status == 65, log
    assert "--accept-beginning" in log
    status, done = escrowmq("store", "repair", str(tmp_path / "data"), "--accept-beginning")
    assert (status, "lost: orders, queue 0, offsets 0 to 2" in done) == (0, True), done
    with Server(tmp_path / "data") as server, server.client() as api:
        receipt = ok(
            api.post("/v1/topics/orders/messages", json={"payload": "next", "queue_id": 0}), 201
        )
        assert receipt["queue_offset"] == 3


def test_a_registry_that_is_no_database_is_65(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "registry.db").write_bytes(b"nonsense " * 1_000)

    status, log = outcome(Server(tmp_path / "data"))

    assert status == 65, log
    assert "Traceback" not in log


def flip(file: Path, at: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 0xFF]))


# --------------------------------------------------------------------------------------------------
# signals


def test_sigterm_under_load_ends_in_time_and_in_order_and_everything_acknowledged_is_there(
    tmp_path,
):
    with Server(tmp_path / "data") as server:
        with server.client() as api:
            ok(api.post("/v1/topics", json={"topic": "orders", "queues": 4}), 201)
        sent: list[str] = []
        committed: list[str] = []
        unexpected: list[str] = []
        loaders = [
            threading.Thread(target=load, args=(server, sent, committed, unexpected))
            for _ in range(6)
        ]
        for loader in loaders:
            loader.start()
        until(lambda: len(sent) > 300 and len(committed) > 30, "there is load")

        begun = time.monotonic()
        status = server.terminate()
        took = time.monotonic() - begun
        for loader in loaders:
            loader.join()

        assert not unexpected, unexpected[:3]
        assert status == 0, server.log()
        assert took < 10
        assert not (tmp_path / "data" / "store" / "abort").exists()
        assert "stopped" in last_line(server.log())
        server.start()
        assert "was_clean=True" in server.log()
        with server.client() as api:
            found = messages_of(api, "orders")
    assert set(sent) <= found
    assert set(committed) <= found


def load(server: Server, sent: list[str], committed: list[str], unexpected: list[str]) -> None:
    """Send and commit until the service says that it stops, or is gone."""
    begin = {
        "producer_group": "shop",
        "messages": [{"topic": "orders", "message": {"payload": "in a transaction"}}],
    }
    with server.client() as api:
        try:
            while True:
                for _ in range(10):
                    answer = api.post("/v1/topics/orders/messages", json={"payload": "x" * 200})
                    if answer.status_code != 201:
                        return note_end(answer, unexpected)
                    sent.append(answer.json()["message_id"])
                answer = api.post("/v1/transactions", json=begin)
                if answer.status_code != 201:
                    return note_end(answer, unexpected)
                answer = api.post(f"/v1/transactions/{answer.json()['transaction_id']}/commit")
                if answer.status_code != 200:
                    return note_end(answer, unexpected)
                committed.append(answer.json()["messages"][0]["message_id"])
        except httpx.TransportError:
            return None


def note_end(answer: httpx.Response, unexpected: list[str]) -> None:
    if (
        answer.status_code != 503
        or answer.json()["code"] != "shutting_down"
        or "retry-after" not in answer.headers
    ):
        unexpected.append(answer.text)


def messages_of(api: httpx.Client, topic: str) -> set[str]:
    found = set()
    for queue in ok(api.get(f"/v1/topics/{topic}/queues"))["items"]:
        offset = queue["min_offset"]
        while offset < queue["max_offset"]:
            query = {"offset": offset, "max_messages": 1_000, "payload": "omit"}
            page = ok(
                api.get(f"/v1/topics/{topic}/queues/{queue['queue_id']}/messages", params=query)
            )
            found |= {message["message_id"] for message in page["messages"]}
            offset = page["next_offset"]
    return found


def test_ctrl_c_ends_it_in_order_too(tmp_path):
    with Server(tmp_path / "data") as server:
        status = server.terminate(signal.SIGINT)

    assert status == 0
    assert not (tmp_path / "data" / "store" / "abort").exists()


def send_half_a_request(server: Server, connection: socket.socket) -> None:
    """Send the beginning of a request, and return when the service has read it."""
    connection.sendall(b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
    with server.client() as api:
        ok(api.get("/readyz"))


def test_sigterm_while_a_connection_is_in_the_middle_of_its_request_ends_in_time(tmp_path):
    environment = {"ESCROWMQ_HTTP__STOP_TIMEOUT_MS": "1000"}
    with (
        Server(tmp_path / "data", environment=environment) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        send_half_a_request(server, connection)

        assert server.terminate() == 0

    assert not (tmp_path / "data" / "store" / "abort").exists()


def test_a_second_signal_does_not_wait_for_requests_and_ends_it_in_order(tmp_path):
    environment = {"ESCROWMQ_HTTP__STOP_TIMEOUT_MS": "600000"}
    with (
        Server(tmp_path / "data", environment=environment) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        send_half_a_request(server, connection)
        os.kill(server.pid, signal.SIGTERM)
        until(lambda: "] stopping" in server.log(), "the stop begins")

        assert server.terminate() == 0

    assert "Traceback" not in server.log()
    assert not (tmp_path / "data" / "store" / "abort").exists()


def test_two_signals_at_once_end_it_in_order(tmp_path):
    with Server(tmp_path / "data") as server:
        os.kill(server.pid, signal.SIGINT)

        assert server.terminate() == 0

    assert "Traceback" not in server.log()
    assert not (tmp_path / "data" / "store" / "abort").exists()


# --------------------------------------------------------------------------------------------------
# files


def test_files_are_for_the_owner_alone(tmp_path):
    with (
        Server(
            tmp_path / "data", environment={"ESCROWMQ_TXN__SNAPSHOT_INTERVAL_MS": "10"}
        ) as server,
        server.client() as api,
    ):
        ok(
            api.post(
                "/v1/topics/orders/messages",
                json={"payload": "x"},
                headers={"Idempotency-Key": "k"},
            ),
            201,
        )
        begin = {
            "producer_group": "shop",
            "messages": [{"topic": "orders", "message": {"payload": "x"}}],
        }
        ok(api.post("/v1/transactions", json=begin), 201)
        while_it_runs = modes(tmp_path / "data")
        assert server.terminate() == 0

    assert while_it_runs.keys() >= {
        "registry.db",
        "store",
        "store/commitlog",
        "store/consumequeue",
        "store/abort",
        "store/checkpoint",
    }
    for name, mode in (while_it_runs | modes(tmp_path / "data")).items():
        assert stat.S_IMODE(mode) == (0o700 if stat.S_ISDIR(mode) else 0o600), name


def modes(directory: Path) -> dict[str, int]:
    return {".": directory.stat().st_mode} | {
        str(path.relative_to(directory)): state.st_mode
        for path, state in states_of(directory).items()
    }


# --------------------------------------------------------------------------------------------------
# command


def test_the_command_explains_itself(tmp_path):
    program = Server(tmp_path / "data").command[0]
    for words, expected in (
        (["--help"], "serve"),
        (["serve", "--help"], "--data-dir"),
        (["openapi"], '"openapi": "3.1.0"'),
    ):
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
    done = subprocess.run(
        [program, "sreve"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2


def test_a_log_that_is_taken_away_under_the_service_ends_it_and_it_serves_again_once_the_log_is_back(
    tmp_path,
):
    with Server(tmp_path / "data") as server:
        with server.client() as api:
            sent = ok(
                api.post("/v1/topics/orders/messages", json={"payload": "x", "queue_id": 0}), 201
            )["message_id"]
        log = tmp_path / "data" / "store" / "commitlog"

        for take_away in (
            lambda: log.rename(tmp_path / "kept"),
            lambda: replace_by_a_copy(log, tmp_path / "kept"),
        ):
            take_away()

            assert server.wait() == 74
            assert str(log) in server.log().rpartition("service_failed")[2]
            shutil.rmtree(log, ignore_errors=True)
            (tmp_path / "kept").rename(log)
            server.start()
            with server.client() as api:
                pulled = ok(api.get("/v1/topics/orders/queues/0/messages"))["messages"]
            assert [message["message_id"] for message in pulled] == [sent]


def replace_by_a_copy(folder: Path, kept: Path) -> None:
    folder.rename(kept)
    shutil.copytree(kept, folder)
