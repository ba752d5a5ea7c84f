"""Filters beside the same question as a Python expression."""

from collections.abc import Callable

from benchmarks.report import Figure, median_of, seconds, show
from delivery.filters.filters import compile_filter
from storage.message import Message, QueueId

EVALUATIONS = 100_000


def run() -> None:
    show("Filters", f"median of 5 times {EVALUATIONS:,} messages", _filters())


def _filters() -> list[Figure]:
    message = Message(
        queue=QueueId("orders", 0),
        message_id="m",
        body=b"",
        born_at_ms=0,
        tag="paid",
        properties={"amount": "150", "region": "eu", "coupon": "none"},
    )
    tags = frozenset({"created", "paid"})
    five = (
        "(amount > 200 OR region IN ('eu', 'uk')) AND coupon IS NOT NULL AND TAGS = 'paid' AND "
        "NOT region = 'us'"
    )
    own: dict[str, str] = dict(message.properties)
    return [
        _filter(
            "tag: created || paid",
            compile_filter("tag", "created || paid").matches,
            message,
            lambda one: one.tag in tags,
        ),
        _filter(
            "sql92: amount > 100",
            compile_filter("sql92", "amount > 100").matches,
            message,
            lambda one: int(own["amount"]) > 100,
        ),
        _filter(
            "sql92 of five parts",
            compile_filter("sql92", five).matches,
            message,
            lambda one: (
                (int(own["amount"]) > 200 or own["region"] in ("eu", "uk"))
                and own.get("coupon") is not None
                and one.tag == "paid"
                and own["region"] != "us"
            ),
        ),
    ]


def _filter(
    work: str,
    matches: Callable[[Message], bool],
    message: Message,
    plain: Callable[[Message], bool],
) -> Figure:
    def rate(question: Callable[[Message], bool]) -> float:
        def ask() -> None:
            for _ in range(EVALUATIONS):
                question(message)

        return EVALUATIONS / median_of(5, lambda: seconds(ask))

    assert matches(message) is plain(message) is True
    return Figure(work, rate(matches), "messages/s", rate(plain), "the same as Python")
