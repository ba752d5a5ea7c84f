"""A file of a report is written whole, and nothing beside it is touched."""

import pytest

from cli.common import write_whole


@pytest.fixture(params=["a path", "a URI"])
def where(request, tmp_path) -> str:
    path = tmp_path / "report.json"
    if request.param == "a path":
        return str(path)
    pytest.importorskip("pyarrow")
    return path.as_uri()


def test_a_file_of_another_program_beside_it_stays_as_it_is(where, tmp_path):
    (tmp_path / "report.json.part").write_text("of another program")

    write_whole(where, "first")
    write_whole(where, "second")

    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"report.json": "second", "report.json.part": "of another program"}


def test_of_one_that_cannot_get_its_name_nothing_is_left(where, tmp_path):
    (tmp_path / "report.json" / "kept").mkdir(parents=True)

    with pytest.raises(OSError, match=r"report\.json"):
        write_whole(where, "text")

    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
