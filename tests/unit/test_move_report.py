"""The text of a hand-over's report."""

from app.store_moves.report import Carried, Report, finding, lines


def test_names_that_are_left_out_are_counted_and_things_without_a_name_are_not():
    leased = finding("leases", "messages that are leased", ["billing: 2"], count=2)
    unknown = finding("topics", "topics", [f"t-{number:02}" for number in range(23)])
    report = Report(
        report="export",
        source="data",
        target="broker",
        dry_run=False,
        seconds=0.1,
        linked_files=0,
        linked_bytes=0,
        copied_files=0,
        copied_bytes=0,
        needed_bytes=0,
        free_bytes=0,
        settings={},
        carried=Carried(**dict.fromkeys(Carried.__struct_fields__, 0)),
        not_kept=[unknown],
        twice=[leased],
        advice=[],
    )

    text = [line.strip() for line in lines(report)]

    assert text[text.index("2  messages that are leased") + 1] == "billing: 2"
    assert text[text.index("23  topics") + 1].endswith("t-18, t-19 and 3 more")
