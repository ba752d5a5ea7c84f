"""The balance: four books that were kept apart, compared flight by flight.

The data says which flights departed. The ledger says what the application decided. The service says
how its transactions ended. The consumer says what it was given. `find_faults` is pure, so that a
test can cheat it.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from examples.flights.consumer import Delivered
from examples.flights.data import Flight, Totals, totals
from examples.flights.ledger import Entry, Outcome

_EXAMPLES = 5
_STATE_OF = {Outcome.COMMIT: "committed", Outcome.ROLLBACK: "rolled_back"}


@dataclass(frozen=True, kw_only=True)
class Books:
    flights: Sequence[Flight]  # the data
    written: Mapping[int, Entry]  # the ledger: flights by number
    markers: Mapping[str, Outcome]  # the ledger: what became of each transaction
    states: Mapping[str, str]  # the service: transactions and their states
    delivered: Sequence[Delivered]  # the consumer: messages, as they came
    # what is known about the data from elsewhere, where it is the whole file
    stated: Totals | None = None


def find_faults(books: Books) -> list[str]:
    """Whatever does not agree, in words; empty when the books balance."""
    return [*_of_data(books), *_of_ledger(books), *_of_service(books), *_of_delivery(books)]


def _of_data(books: Books) -> Iterator[str]:
    found = totals(books.flights)
    if books.stated is not None and found != books.stated:
        yield f"the data should hold {books.stated}, but it holds {found}"


def _of_ledger(books: Books) -> Iterator[str]:
    """Every flight is written once, in a transaction whose marker says what the data says."""
    yield from _fault(
        "flights are missing in the ledger",
        {flight.number for flight in books.flights} - books.written.keys(),
    )
    wrong = []
    for flight in books.flights:
        entry = books.written.get(flight.number)
        outcome = Outcome.ROLLBACK if flight.departed is None else Outcome.COMMIT
        if entry is not None and books.markers.get(entry.transaction_id) is not outcome:
            wrong.append(flight.number)
    yield from _fault("flights have a marker in the ledger that contradicts the data", wrong)


def _of_service(books: Books) -> Iterator[str]:
    """Every transaction is decided, and as the ledger says."""
    states, markers = books.states, books.markers
    open_ones = {name for name, state in states.items() if state in ("prepared", "held")}
    yield from _fault("transactions are undecided", open_ones)
    yield from _fault(
        "transactions were decided without a marker in the ledger",
        states.keys() - markers.keys() - open_ones,
    )
    yield from _fault(
        "transactions of the ledger are unknown to the service", markers.keys() - states.keys()
    )
    otherwise = {
        name
        for name, outcome in markers.items()
        if name not in open_ones and states.get(name) not in (None, _STATE_OF[outcome])
    }
    yield from _fault("transactions ended otherwise than the ledger says", otherwise)


def _of_delivery(books: Books) -> Iterator[str]:
    """Exactly the departed flights; each under the one message id that its begin promised, with its
    own words.
    """
    flights = {flight.number: flight for flight in books.flights}
    departed = {flight.number for flight in books.flights if flight.departed is not None}
    numbers = {message.number for message in books.delivered}
    yield from _fault("flights departed, but no message came", departed - numbers)
    yield from _fault(
        "flights never departed, but a message came", (numbers & flights.keys()) - departed
    )
    yield from _fault(
        "messages are about flights that the data does not hold", numbers - flights.keys()
    )
    other_id, other_words = set(), set()
    for message in books.delivered:
        flight, entry = flights.get(message.number), books.written.get(message.number)
        if entry is not None and message.message_id != entry.message_id:
            other_id.add(message.number)
        if flight is not None and json.loads(message.payload) != flight.body:
            other_words.add(message.number)
    yield from _fault("flights came under another message id than the begin promised", other_id)
    yield from _fault("flights came with another body than was sent", other_words)


def _fault(what: str, who: Collection[int] | Collection[str]) -> Iterator[str]:
    if who:
        examples = ", ".join(str(one) for one in sorted(who)[:_EXAMPLES])
        yield f"{len(who):,} {what}: {examples}{', …' if len(who) > _EXAMPLES else ''}"


def sheet(books: Books) -> Table:
    """The balance sheet: what each book says about departed flights, cancelled ones, and all of
    them.
    """
    table = Table("", title="Balance sheet", title_justify="left")
    for column in ("departed", "cancelled", "all"):
        table.add_column(column, justify="right")
    if books.stated is not None:
        table.add_row("known about 2013", *_cells(books.stated.departed, books.stated.cancelled))
    departed = {flight.number for flight in books.flights if flight.departed is not None}
    found = totals(books.flights)
    table.add_row("data: flights", *_cells(found.departed, found.cancelled))
    table.add_row("ledger: flights written", *_split(books.written, departed))
    of_flights = [books.states.get(entry.transaction_id) for entry in books.written.values()]
    table.add_row(
        "service: committed, rolled back",
        *_cells(of_flights.count("committed"), of_flights.count("rolled_back")),
    )
    table.add_row(
        "consumer: flights delivered",
        *_split({message.number for message in books.delivered}, departed),
    )
    return table


def duplicate_count(delivered: Iterable[Delivered]) -> int:
    """Messages that came more than once under the same id: at-least-once delivery allows them, and
    a consumer can tell.
    """
    counts = Counter(message.message_id for message in delivered)
    return counts.total() - len(counts)


def _split(numbers: Iterable[int], departed: Collection[int]) -> tuple[str, str, str]:
    counts = Counter(number in departed for number in numbers)
    return _cells(counts[True], counts[False])


def _cells(departed: int, cancelled: int) -> tuple[str, str, str]:
    return f"{departed:,}", f"{cancelled:,}", f"{departed + cancelled:,}"
