"""The file of a report: whole or not at all, in place of nothing but a file."""

import os
import resource
import stat
import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest
import typer

from cli.common import check_file, write_whole


@pytest.fixture(params=["path", "URI"])
def write(request):
    """Writes a text to a path; `URI`: which is given as one."""
    if request.param == "path":
        return lambda path, text: write_whole(str(path), text)
    pytest.importorskip("pyarrow")
    return lambda path, text: write_whole(Path(path).absolute().as_uri(), text)


def test_a_pipe_is_written_to_and_stays_one(tmp_path, write):
    pipe = tmp_path / "report.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        write(pipe, "a report")

        assert os.read(reader, 100) == b"a report"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [*tmp_path.iterdir()] == [pipe]


def test_a_link_to_a_pipe_is_followed_as_that_of_the_standard_output(tmp_path, write):
    read_from, write_to = os.pipe()
    os.set_blocking(read_from, False)
    link = tmp_path / "stdout"
    link.symlink_to(f"/proc/self/fd/{write_to}")
    try:
        write(link, "a report")

        assert os.read(read_from, 100) == b"a report"
    finally:
        os.close(read_from)
        os.close(write_to)
    assert link.is_symlink()


def test_a_link_to_a_file_stays_and_the_file_is_another(tmp_path, write):
    file = tmp_path / "2026.json"
    file.write_text("the report before it, which is longer")
    link = tmp_path / "newest.json"
    link.symlink_to(file.name)

    write(link, "a report")

    assert link.is_symlink()
    assert file.read_text() == "a report"
    assert {*tmp_path.iterdir()} == {file, link}


@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_the_standard_output_goes_to_keeps_what_came_before_and_comes_behind(
    tmp_path, write, is_link
):
    file, link = tmp_path / "out", tmp_path / "link"
    with file.open("wb", buffering=0) as out:
        out.write(b"before, ")
        path = Path(f"/dev/fd/{out.fileno()}")
        if is_link:
            link.symlink_to(path)
            path = link
        write(path, "a report")
        out.write(b", behind")

        assert os.fstat(out.fileno()).st_ino == file.stat().st_ino
    assert file.read_text() == "before, a report, behind"
    assert {*tmp_path.iterdir()} <= {file, link}


def test_a_file_that_another_process_has_open_is_written_to_at_its_end(tmp_path, write):
    file = tmp_path / "out"
    file.write_text("before, ")
    with file.open("rb") as out, subprocess.Popen(["/bin/cat"], stdin=PIPE, stdout=out) as other:
        write(Path(f"/proc/{other.pid}/fd/1"), "a report")

    assert file.read_text() == "before, a report"


def test_links_that_lead_back_to_themselves_are_an_error_with_the_path(tmp_path, write):
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.symlink_to(other)
    other.symlink_to(one)

    with pytest.raises(OSError, match="Too many levels of symbolic links") as failure:
        write(one, "a report")

    assert failure.value.filename == str(one)
    assert {*tmp_path.iterdir()} == {one, other}


@pytest.mark.parametrize("length", [242, 250, 255])
def test_a_name_can_be_as_long_as_the_disk_allows(tmp_path, write, length):
    file = tmp_path / ("r" * length)

    write(file, "a report")

    assert file.read_text() == "a report"
    assert [*tmp_path.iterdir()] == [file]


def test_a_report_for_which_there_is_no_room_leaves_the_one_before_it_and_no_part(tmp_path, write):
    file = tmp_path / "report.json"
    file.write_text("the report before it")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as failure:
            write(file, "x" * 5_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert failure.value.filename == str(file)
    assert file.read_text() == "the report before it"
    assert [*tmp_path.iterdir()] == [file]


def test_a_file_of_another_program_beside_it_stays_as_it_is(tmp_path, write):
    (tmp_path / "report.json.part").write_text("of another program")

    write(tmp_path / "report.json", "first")
    write(tmp_path / "report.json", "second")

    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"report.json": "second", "report.json.part": "of another program"}


def test_of_one_that_cannot_get_its_name_nothing_is_left(tmp_path, write):
    (tmp_path / "report.json" / "kept").mkdir(parents=True)

    with pytest.raises(OSError, match=r"report\.json"):
        write(tmp_path / "report.json", "text")

    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_name_that_no_file_can_have_is_wrong_usage(tmp_path):
    with pytest.raises(typer.BadParameter, match="it cannot be written: File name too long"):
        check_file(str(tmp_path / ("x" * 256)), "--json")

    check_file(str(tmp_path / ("x" * 255)), "--json")
