"""The report as a page: whole by itself, every number in a table, nobody's text taken for
markup.
"""

import re
from html.parser import HTMLParser

import pytest

from audit.report import page
from audit.verdicts import FLAGS, VERDICTS

BEGUN_MS = 1_800_000_000_000


def report(**changed) -> dict:
    return {
        "kind": "transaction_outcomes",
        "state": "done",
        "begun": 1_203,
        "verdicts": dict.fromkeys(VERDICTS, 0) | {"committed_once": 1_200, "final_missing": 1,
        "undecided": 2},
        "balanced": True,
        "flags": dict.fromkeys(FLAGS, 0),
        "findings": {
            "total": 2,
            "by_verdict": {"final_missing": 1, "damaged": 1},
            "items": [
                {"verdict": "final_missing", "transaction_id": "<script>alert(1)</script>",
                "producer_group": "a&b",
                 "altered": True, "wrong_half": False,
                 "records": [{"kind": "half", "log_offset": 77}], "records_omitted": 0},
                {"verdict": "damaged", "log_offset": 4_096, "bytes": 80,
                "reason": "its checksum is wrong"},
            ],
            "omitted": 0,
        },
        "producer_groups": [{"producer_group": "$x$",
        "verdicts": {"committed_once": 1_200, "undecided": 2}}],
        "producer_groups_omitted": 3,
        "log": {"begin": 0, "end": 9_000, "records": 40, "accounted_bytes": 9_000,
        "damaged_stretches": 1, "damaged_bytes": 80,
                "torn_bytes": 0},
        "segments": {"from": "0" * 20, "to": "0" * 20, "digest": "sha256:abc"},
        "engine": "spark 4.3.0",
        "over_time": {
            "interval_ms": 60_000,
            "outcomes": [{"at_ms": BEGUN_MS,
            "verdicts": {"committed_once": 700, "committed_duplicated": 1}},
                         {"at_ms": BEGUN_MS + 60_000,
                         "verdicts": {"committed_once": 500, "undecided": 2}}],
            "decision_ms": [[1, 5], [1_023, 1_195]],
            "undecided": [{"producer_group": "$x$", "n": 2,
            "older_than_ms": {"60000": 2, "600000": 1, "3600000": 0}}],
            "log_interval_ms": 1_000,
            "growth": [[BEGUN_MS, 40, 9_000]],
        },
        "checks": {"checkbacks": {"findings": {"asked_too_often": 4},
        "answers": {"0": 1_200, "3": 2}, "failures": {}},
                   "other": {"findings": {},
                   "rows": [{"group": "billing", "n": 17, "buckets": [[1, 2]]}], "list": [1, 2]}},
        **changed,
    }  # fmt: skip


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.met: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.met.add(tag)
        if tag not in ("meta", "path", "use", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.met.add(tag)

    def handle_data(self, data):
        self.text += data


def parsed(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    return tags


def test_it_is_whole_by_itself():
    html = page.render(report())

    tags = parsed(html)
    assert not tags.met & {"script", "link", "img", "iframe", "object"}
    assert {
        one for one in re.findall(r"https?://[^\"' <]+", html) if "www.w3.org" not in one
    } == set(), "names of SVG alone"
    assert "@import" not in html
    assert html.count("<svg") == 6


def test_every_number_of_a_plot_stands_in_a_table_beside_it():
    text = parsed(page.render(report())).text

    for number in ("700", "500", "1,195", "1,200", "9,000", "2027-01-15 08:00", "over 10 min"):
        assert number in text, number
    for name in ("asked too often", "billing", "1, 2"):
        assert name in text, f"what further checks have found: {name}"


def test_an_interval_in_which_nothing_happened_takes_its_place():
    sparse = report()
    sparse["over_time"]["outcomes"][1]["at_ms"] += 120_000

    text = parsed(page.render(sparse)).text

    assert "2027-01-15 08:01" in text
    assert "2027-01-15 08:02" in text


def test_the_times_of_a_log_that_took_milliseconds_are_told_apart():
    brief = report()
    brief["over_time"]["interval_ms"] = 100
    brief["over_time"]["outcomes"][1]["at_ms"] = BEGUN_MS + 200

    text = parsed(page.render(brief)).text

    assert "2027-01-15 08:00:00.100" in text
    assert "2027-01-15 08:00:00.200" in text


def test_nobodys_text_is_taken_for_markup():
    html = page.render(report())

    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "$x$" in parsed(html).text


def test_the_same_report_gives_the_same_page():
    assert page.render(report()) == page.render(report())


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"balanced": False}, "It does not balance"),
        ({"findings": {"total": 0, "by_verdict": {}, "items": [], "omitted": 0}}, "It balances"),
        ({}, "2 findings."),
    ],
)
def test_what_matters_stands_first(changed, sentence):
    text = parsed(page.render(report(**changed))).text

    assert (
        text.index("The outcome of every transaction")
        < text.index(sentence)
        < text.index("Verdicts")
    )


def test_a_report_without_rows_has_no_plots_and_all_of_its_tables():
    bare = report()
    del bare["over_time"], bare["checks"]

    html = page.render(bare)

    assert "<svg" not in html
    assert "final_missing" in parsed(html).text
