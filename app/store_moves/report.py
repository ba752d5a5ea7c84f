"""The report of a hand-over: what carries over, what does not, and what may be seen twice. Pure."""

from collections.abc import Iterable, Iterator

import msgspec

_SHOWN = 20


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of thing that is not kept, or comes twice.

    `names`: the first of them, or of the groups that they are in; `more_names`: of those left out.
    """

    code: str
    count: int
    what: str
    names: list[str]
    more_names: int


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of what carries over. `retries_waiting`: in retry queues; a retry whose backoff lasts
    is among `delayed_waiting`, and what a broker has delayed for itself is not.
    """

    topics: int
    queues: int
    messages: int
    groups: int
    group_offsets: int
    transactions_undecided: int
    transactions_decided: int
    delayed_waiting: int
    retries_waiting: int
    dead_letters: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`needed_bytes`: on the disk of the target, for copies; `free_bytes`: there, before them.

    `settings`: what the other side is started with; `advice`: sentences.
    """

    report: str
    source: str
    target: str
    dry_run: bool
    seconds: float
    linked_files: int
    linked_bytes: int
    copied_files: int
    copied_bytes: int
    needed_bytes: int
    free_bytes: int
    settings: dict[str, int]
    carried: Carried
    not_kept: list[Finding]
    twice: list[Finding]
    advice: list[str]


def finding(code: str, what: str, names: Iterable[str], *, count: int | None = None) -> Finding:
    """`count`: of the things, where it is not the number of names."""
    found = sorted(names)
    number = len(found) if count is None else count
    left_out = max(0, len(found) - _SHOWN)
    return Finding(code=code, count=number, what=what, names=found[:_SHOWN], more_names=left_out)


def found_only(findings: Iterable[Finding]) -> list[Finding]:
    """The findings whose count is not 0."""
    return [one for one in findings if one.count]


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    done = "would be " if report.dry_run else ""
    yield f"{report.source} -> {report.target}"
    yield (
        f"{report.linked_files} files ({report.linked_bytes:,} bytes) {done}linked, "
        f"{report.copied_files} files ({report.copied_bytes:,} bytes) {done}copied, "
        f"{report.seconds} s"
    )
    yield (
        f"The copies need {report.needed_bytes:,} bytes of disk, of which "
        f"{report.free_bytes:,} were free"
    )
    yield "Carries over:"
    for name, number in msgspec.structs.asdict(report.carried).items():
        yield f"  {number:>14,}  {name.replace('_', ' ')}"
    yield from _section("Is not kept:", report.not_kept)
    yield from _section("May be seen twice:", report.twice)
    yield from report.advice
    for name, value in report.settings.items():
        yield f"  {name}={value}"
    if report.dry_run:
        yield "Nothing was changed."


def _section(title: str, findings: list[Finding]) -> Iterator[str]:
    if not findings:
        yield f"{title} nothing"
        return
    yield title
    for one in findings:
        yield f"  {one.count:>14,}  {one.what}"
        if one.names:
            more = f" and {one.more_names:,} more" if one.more_names else ""
            yield f"{'':18}{', '.join(one.names)}{more}"
