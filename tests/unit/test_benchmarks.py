"""Benchmarks' arithmetic: readings of /proc, medians of rounds, ratios."""

import pytest

from benchmarks.cpu import ThreadTime, between, by_group, process_tree, running, thread_times
from benchmarks.generator import Window, parse_wrk
from benchmarks.peers.comparison import Comparison, Side, best
from benchmarks.peers.table import write
from benchmarks.pictures import draw_floors
from benchmarks.report import BEGIN, END, REPOSITORY, replace_figures
from benchmarks.rows import Round, Row, summary, thread_group

SERVER = 40
_WRK = """Running 1s test @ http://127.0.0.1:8080/
    Latency   512.00us    1.20ms
     50%  250.00us
     75%    1.00ms
     99%    2.50ms
  52000 requests in 1.00s, 10.00MB read
"""


def write_thread(proc, pid, thread, name, running_ns, waiting_ns):
    task = proc / str(pid) / "task" / str(thread)
    task.mkdir(parents=True, exist_ok=True)
    (task / "comm").write_text(f"{name}\n")
    (task / "schedstat").write_text(f"{running_ns} {waiting_ns} 17\n")


def write_stat(proc, pid, parent):
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (a ) b) S {parent} 1 1 0")


def window(loop=0.0, flush=0.0, *, messages=1_000, load=0.0, p50_ms=1.0):
    server = {
        SERVER: ThreadTime("python", loop, 0.0),
        SERVER + 1: ThreadTime("store-flush_0", flush, 0.0),
    }
    return Window(messages, messages, 1.0, p50_ms, 9.0, server, {7: ThreadTime("load", load, 0.0)})


def test_the_times_of_all_threads_are_read_in_seconds(tmp_path):
    write_thread(tmp_path, 40, 40, "python", 2_500_000_000, 1_000_000)
    write_thread(tmp_path, 40, 41, "store-flush_0", 500, 0)
    write_thread(tmp_path, 50, 50, "other", 1_000_000_000, 0)

    times = thread_times(40, 50, proc=tmp_path)

    assert times[40] == ThreadTime("python", 2.5, 0.001)
    assert times[41] == ThreadTime("store-flush_0", 5e-7, 0.0)
    assert running(times) == pytest.approx(3.5000005)


def test_a_thread_that_ended_while_it_was_read_is_left_out(tmp_path):
    write_thread(tmp_path, 40, 40, "python", 1, 1)
    (tmp_path / "40" / "task" / "41").mkdir()

    assert set(thread_times(40, proc=tmp_path)) == {40}


def test_a_thread_that_began_meanwhile_counts_in_full():
    before = {1: ThreadTime("a", 1.0, 0.25)}
    after = {1: ThreadTime("a", 3.0, 0.75), 2: ThreadTime("b", 0.5, 0.0)}

    assert between(before, after) == {1: ThreadTime("a", 2.0, 0.5), 2: ThreadTime("b", 0.5, 0.0)}


def test_the_times_of_a_group_are_added():
    times = {
        1: ThreadTime("a", 1.0, 9.0),
        2: ThreadTime("b", 2.0, 9.0),
        3: ThreadTime("b", 0.5, 9.0),
    }

    assert by_group(times, lambda _, name: name) == {"a": 1.0, "b": 2.5}


def test_a_process_tree_has_the_children_of_children_and_no_others(tmp_path):
    for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11), (20, 1)):
        write_stat(tmp_path, pid, parent)

    assert sorted(process_tree(10, proc=tmp_path)) == [10, 11, 12]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("store-flush_0", "flush"),
        ("store-derive_0", "derive"),
        ("store-prepare_0", "other"),
        ("loop-watch", "other"),
    ],
)
def test_a_thread_belongs_to_the_group_of_its_lane(name, group):
    assert thread_group(is_main=False, name=name) == group
    assert thread_group(is_main=True, name=name) == "loop"


def test_a_row_is_the_median_of_its_rounds_each_beside_its_own_floor():
    rounds = [
        Round(window(0.010), window(0.040, 0.020, p50_ms=3.0)),  # 6 floors
        Round(window(0.020), window(0.060, p50_ms=1.0)),  # 3
        Round(window(0.010), window(0.200, 0.300, p50_ms=2.0)),  # 50
    ]

    found = summary(
        Row(name="r", title="a row", connections=1, command={}, goal=4.0), rounds, SERVER
    )

    assert found.multiple == pytest.approx(6.0)
    assert found.cpu_us == pytest.approx(
        {"all": 60.0, "loop": 60.0, "flush": 20.0, "derive": 0.0, "other": 0.0}
    )
    assert (found.rate, found.p50_ms, found.goal) == (1_000, 2.0, 4.0)


@pytest.mark.parametrize(
    ("load", "server", "is_limit"), [(0.97, 0.6, True), (0.97, 0.99, False), (0.8, 0.6, False)]
)
def test_the_load_is_the_limit_where_its_core_is_busy_and_that_of_the_server_is_not(
    load, server, is_limit
):
    rounds = [Round(window(0.01), window(server, load=load))] * 2 + [
        Round(window(0.01), window(0.5, load=0.5))
    ]

    found = summary(Row(name="r", title="a row", connections=1, command={}), rounds, SERVER)

    assert found.is_limited_by_load is is_limit
    assert found.load_share == load


def test_time_for_which_the_load_waited_for_its_core_counts_as_busy():
    waited = window(0.5)._replace(load={7: ThreadTime("load", 0.6, 0.5)})

    assert waited.load_share == 1.0
    assert waited.is_limited_by_load


def test_what_wrk_prints_is_read_in_milliseconds():
    assert parse_wrk(_WRK) == (52_000, 0.25, 2.5)


@pytest.mark.parametrize(
    "line",
    ["  Non-2xx or 3xx responses: 5", "  Socket errors: connect 0, read 1, write 0, timeout 0"],
)
def test_wrk_that_met_an_error_measured_nothing(line):
    with pytest.raises(RuntimeError, match=r"responses|errors"):
        parse_wrk(_WRK + line)


def test_a_side_has_the_medians_of_the_number_of_connections_with_the_highest_median_rate():
    windows = {
        64: [
            window(0.03, messages=1_000),
            window(0.01, messages=9_000),
            window(0.02, messages=1_000),
        ],
        256: [
            window(0.04, messages=2_000),
            window(0.08, messages=2_000),
            window(0.06, messages=2_000, p50_ms=5.0),
        ],
    }

    found = best(windows)

    assert (found.connections, found.rate, found.cpu_us, found.p50_ms) == (
        256,
        2_000,
        pytest.approx(30.0),
        1.0,
    )


def side(rate, cpu_us, **more):
    return Side(
        connections=64,
        rate=rate,
        cpu_us=cpu_us,
        p50_ms=1.0,
        p99_ms=2.0,
        is_limited_by_load=False,
        **{"refused": 0, **more},
    )


def compared(**more):
    sides = {"peer_side": side(10_000.0, 20.0, refused=3), "own_side": side(15_000.0, 30.0)}
    texts = {
        "peer": "Peer",
        "version": "1.2",
        "setting": "sync",
        "durability": "synced",
        "row": "single",
        "text": "send",
    }
    return Comparison(**{**texts, **sides, "goal": 1.5, **more})


def test_a_ratio_is_that_of_the_service_to_the_peer():
    assert compared().ratio == 1.5
    assert compared().cpu_ratio == 1.5


@pytest.mark.parametrize("page", ["performance.md", "peers.md"])
def test_a_page_of_figures_has_one_place_for_them(page):
    text = (REPOSITORY / "docs" / page).read_text()

    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    assert text.index(BEGIN) < text.index(END)


def test_a_page_without_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\n")

    with pytest.raises(ValueError, match="end of figures"):
        replace_figures(page, "a machine", ["new"])

    assert page.read_text() == f"# Title\n\n{BEGIN}\n"


def test_text_that_is_put_into_a_page_is_wrapped_and_a_table_is_not(tmp_path):
    page, table = tmp_path / "page.md", f"| {'cell | ' * 30}"
    page.write_text(f"{BEGIN}\n{END}\n")

    replace_figures(page, "a machine of many parts " * 10, [table, "a long caption " * 10])

    lines = page.read_text().splitlines()
    assert max(len(line) for line in lines if line != table) <= 100
    assert table in lines


def test_the_page_of_peers_gets_new_figures_between_its_marks_and_keeps_the_rest(tmp_path):
    page = tmp_path / "peers.md"
    page.write_bytes((REPOSITORY / "docs" / "peers.md").read_bytes())
    before, after = page.read_text().split(BEGIN)[0], page.read_text().split(END)[1]

    write(
        page,
        "a machine",
        [compared(), compared(durability="buffered", goal=None)],
        {"Other": "needs other"},
    )

    text = page.read_text()
    assert text.startswith(before)
    assert text.endswith(END + after)
    assert (
        "| single send | Peer 1.2 | sync; send; 3 refused | 10,000 (64) | 20 | 15,000 (64) | 30 | "
        "1.50 | 1.5 ✓ | 1.50 |" in text
    )
    assert "Other is absent: needs other." in text
    assert text.index("**Synced**") < text.index("**Buffered**")


def test_the_page_of_peers_shows_a_picture_of_both_durabilities(tmp_path):
    page = tmp_path / "peers.md"
    page.write_text(f"{BEGIN}\n{END}\n")

    write(
        page,
        "a machine",
        [compared(), compared(peer="Rival", durability="buffered", goal=None)],
        {},
    )

    assert "![the rates as bars](peers.svg)" in page.read_text()
    drawn = (tmp_path / "peers.svg").read_text()
    assert all(
        label in drawn
        for label in ("single send: Peer", "single send: Rival", ", synced", ", buffered")
    )


def test_a_picture_has_a_bar_for_each_row_with_its_figure(tmp_path):
    rounds = [Round(window(loop=0.01), window(loop=0.042))]
    row = Row(name="one", title="some work", connections=8, command={}, goal=4.0)

    draw_floors(tmp_path / "floors.svg", [summary(row, rounds, SERVER)])

    drawn = (tmp_path / "floors.svg").read_text()
    assert "some work (8)" in drawn
    assert "4.2" in drawn
