"""The script that counts the figures of docs/code.md."""

import ast

from tests.house.figures import Function, function_size, hops, sizes

SOURCE = '''
def judge(values, limit):
    """Judge the values.

    The docstring does not count.
    """
    for value in values:
        if value > limit and value > 0:
            return value
    return None
'''


def test_a_function_is_measured_without_its_docstring_and_by_its_branches():
    function = ast.parse(SOURCE).body[0]
    assert isinstance(function, Function)

    assert function_size(function) == (4, 4)


def test_sizes_leave_out_the_files_that_only_mark_a_package(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text('"""A package."""\n')
    (package / "judging.py").write_text(SOURCE)

    found = sizes(tmp_path, ["package"])

    assert (found.lines, found.files, found.functions) == (11, [10], [4])


def test_a_plain_request_takes_fewer_calls_than_any_other_of_its_kind(tmp_path):
    found = hops(tmp_path)

    kinds = {name.partition(",")[0] for name in found}
    assert kinds == {"send", "pull", "receive", "ack", "begin", "commit"}
    for kind in kinds:
        plain, other = found[f"{kind}, plain"], found[f"{kind}, any other"]
        assert plain.calls < other.calls
        assert plain.files <= other.files
