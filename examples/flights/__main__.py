"""`python -m examples.flights`: the whole demo, from an empty directory to the balance sheet."""

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from escrowmq_client import EscrowMQError
from examples.flights import audit, signals
from examples.flights.audit import AuditFailed
from examples.flights.balance import Books, duplicate_count, find_faults, sheet
from examples.flights.chaos import plan
from examples.flights.checker import Checker, CheckerFailed
from examples.flights.consumer import pull_everything
from examples.flights.data import WHOLE_FILE, DataMissing, read_flights
from examples.flights.display import Display, Incidents
from examples.flights.ledger import Ledger
from examples.flights.pair import Pair
from examples.flights.process import ServerFailed
from examples.flights.producers import ProducerFailed, Producers
from examples.flights.server import Server
from examples.flights.service import QUEUES, TOPIC, connected

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

_TICK_SECONDS = 0.05
_SETTLE_SECONDS = 120
_PAGE = 1_000


def main() -> int:
    options = _options()
    console = Console(highlight=False, soft_wrap=True)
    # being told to end is the same as Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _directory(options.data_dir) as directory:
            faults = Demo(options, directory, console).run()
    except KeyboardInterrupt:
        console.print("Interrupted. Everything that was started has been stopped.")
        return EXIT_INTERRUPTED
    except (
        DataMissing,
        ServerFailed,
        EscrowMQError,
        ProducerFailed,
        CheckerFailed,
        AuditFailed,
    ) as error:
        console.print("The demo could not be carried through:", style="bold red")
        console.print(str(error), markup=False)
        return EXIT_FAILED
    if not faults:
        console.print(
            "It balances: every departed flight was delivered, and no other.", style="bold green"
        )
        return 0
    console.print("It does NOT balance:", style="bold red")
    for fault in faults:
        console.print(f"  - {fault}", markup=False)
    if options.data_dir is None:
        console.print(
            f"To look into it, keep the data: run it again with --seed {options.seed} --data-dir "
            "DIR."
        )
    return EXIT_FAILED


class Demo:
    """One run in an empty directory. It ends whatever it started, however it ends itself."""

    def __init__(self, options: argparse.Namespace, directory: Path, console: Console) -> None:
        self._options = options
        self._directory = directory
        self._console = console

    def run(self) -> list[str]:
        """Returns what does not balance."""
        options, ledger_path = self._options, self._directory / "ledger.db"
        self._flights = read_flights(options.rows)
        rows = len(self._flights)
        self._say(
            f"{rows:,} flights, {options.producers} producers, seed {options.seed}, data in "
            f"{self._directory}"
        )
        chaos = plan(
            options.seed,
            rows,
            producer_kills=_or_else(options.producer_kills, max(4, rows // 2_000)),
            server_kills=_or_else(options.server_kills, max(2, rows // 40_000)),
            stalls=_or_else(options.stalls, max(1, rows // 50_000)),
        )
        with ExitStack() as stack:
            self._ledger = Ledger.create(ledger_path)
            stack.callback(self._ledger.close)
            self._server = (Pair if options.failover else Server)(self._directory)
            stack.callback(self._server.stop)
            self._server.start()
            self._client = stack.enter_context(connected(self._server.url))
            self._client.create_topic(TOPIC, queues=QUEUES, message_types=["transactional"])
            self._checker = Checker(self._server.url, ledger_path)
            stack.callback(self._checker.stop)
            self._producers = Producers(
                self._flights, options.producers, chaos.fates, self._server.url, ledger_path
            )
            stack.callback(self._producers.end)
            stack.callback(signals.ignore)  # called first
            self._checker.start()
            self._produce(chaos.server_kills)
            self._settle()
            return self._balance()

    def _produce(self, server_kills: list[int]) -> None:
        """All flights into the ledger; the service dies when it holds as many as `server_kills`
        says.
        """
        begun = time.monotonic()
        due = list(server_kills)
        self._producers.start()
        with Display(self._console, len(self._flights)) as display:
            while self._producers.look_after(wait_seconds=_TICK_SECONDS) or due:
                self._checker.raise_if_failed()
                written = self._ledger.written_count()
                if due and written >= due[0]:
                    due.pop(0)
                    self._server.kill()
                    self._server.start()
                display.show(written, self._incidents())
            display.show(self._ledger.written_count(), self._incidents())
        seconds = time.monotonic() - begun
        self._say(
            f"All flights were handled in {seconds:,.0f} s, {len(self._flights) / seconds:,.0f} a "
            f"second. {self._incidents()}"
        )

    def _settle(self) -> None:
        """Wait until the checker has answered for the dead.

        What stays undecided is for the balance to say.
        """
        begun = time.monotonic()
        give_up = begun + _SETTLE_SECONDS
        while self._has_undecided() and time.monotonic() < give_up:
            self._checker.raise_if_failed()
            time.sleep(_TICK_SECONDS)
        self._say(f"The last checks were answered {time.monotonic() - begun:,.0f} s later.")

    def _has_undecided(self) -> bool:
        return bool(self._client.list_transactions(state="prepared,held", page_size=1).items)

    def _balance(self) -> list[str]:
        begun = time.monotonic()
        delivered = list(pull_everything(self._client))
        self._say(f"{len(delivered):,} messages were pulled in {time.monotonic() - begun:,.0f} s.")
        transactions = list(self._client.items(self._client.list_transactions, page_size=_PAGE))
        books = Books(
            flights=self._flights,
            written=self._ledger.flights(),
            markers=self._ledger.markers(),
            states={one.transaction_id: one.state for one in transactions},
            delivered=delivered,
            stated=WHOLE_FILE
            if (self._options.rows or WHOLE_FILE.flights) >= WHOLE_FILE.flights
            else None,
        )
        resolved_by = Counter(one.resolved_by for one in transactions if one.resolved_by)
        self._console.print(sheet(books))
        self._console.print(self._events(resolved_by, duplicate_count(delivered)))
        return find_faults(books) + (self._audit(books) if self._options.audit else [])

    def _audit(self, books: Books) -> list[str]:
        """The log alone, while the service runs."""
        begun = time.monotonic()
        verdicts = audit.audit(self._server.store, self._directory / "audit.json")
        self._say(f"The log was audited in {time.monotonic() - begun:,.0f} s.")
        self._console.print(audit.table(verdicts))
        return audit.find_differences(verdicts, books.states.values())

    def _events(self, resolved_by: Counter[str], duplicates: int) -> Table:
        """What went wrong on the way, and who put it right."""
        answers = self._checker.answers
        table = Table(
            "what happened on the way",
            "",
            show_header=False,
            title="On the way",
            title_justify="left",
        )
        table.columns[1].justify = "right"
        for what, count in {
            "producers killed with -9": self._producers.kill_count,
            self._what_is_killed: self._server.kill_count,
            "transactions decided by their producer": resolved_by["producer"],
            "transactions decided by a check": resolved_by["check"],
            "transactions fenced: rolled back unwritten": self._ledger.fence_count(),
            "checks answered: commit": answers["commit"],
            "checks answered: rollback": answers["rollback"],
            "checks answered: unknown": answers["unknown"],
            "checks whose producer was quicker": answers["refused"],
            "messages delivered more than once": duplicates,
        }.items():
            table.add_row(what, f"{count:,}")
        return table

    @property
    def _what_is_killed(self) -> str:
        if self._options.failover:
            return "machines of the service lost with their disk"
        return "service killed with -9"

    def _incidents(self) -> Incidents:
        return Incidents(
            self._producers.kill_count, self._server.kill_count, self._checker.answers.total()
        )

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights",
        description="Every flight out of New York in 2013 as a transaction, while producers and "
        "the service are killed.",
        epilog="Exit status: 0 it balances, 1 it does not or could not be carried through, 130 "
        "interrupted.",
    )
    parser.add_argument(
        "--rows", type=_positive, help="only the first so many flights (all: 336,776)"
    )
    parser.add_argument(
        "--seed", type=int, default=2013, help="where things go wrong (default: %(default)s)"
    )
    parser.add_argument(
        "--producers", type=_positive, default=12, help="producer processes (default: %(default)s)"
    )
    parser.add_argument(
        "--producer-kills", type=int, metavar="N", help="default: one in 2,000 flights, at least 4"
    )
    parser.add_argument(
        "--server-kills", type=int, metavar="N", help="default: one in 40,000 flights, at least 2"
    )
    parser.add_argument(
        "--failover",
        action="store_true",
        help="two machines, the service and its replica: the service is not started again, its "
        "machine is lost and the replica takes its place",
    )
    parser.add_argument(
        "--stalls",
        type=int,
        metavar="N",
        help="producers too slow to be waited for (one in 50,000, at least 1)",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="keep everything there (default: a temporary directory)",
    )
    parser.add_argument(
        "--audit",
        action="store_true",
        help="let Spark prove from the log what became of each transaction",
    )
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _or_else(given: int | None, default: int) -> int:
    return default if given is None else given


@contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    """The one that was asked for, or one that is gone afterwards."""
    if given is None:
        with TemporaryDirectory(prefix="escrowmq-flights-") as temporary:
            yield Path(temporary)
        return
    given.mkdir(parents=True, exist_ok=True)
    if any(given.iterdir()):
        sys.exit(f"{given} is not empty: a run needs a directory of its own")
    yield given.resolve()


if __name__ == "__main__":
    sys.exit(main())
