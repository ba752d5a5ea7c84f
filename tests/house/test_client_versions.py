"""The client runs on Python 3.10, which the tests of this repository do not."""

import ast

from tests.house.source import modules, nodes


def test_a_file_of_the_client_with_asyncio_names_the_timeout_of_asyncio():
    """On 3.10 asyncio.TimeoutError is none of the built-in TimeoutError, and passes by an `except`
    or a `suppress` of that.
    """
    for path, module in modules("client").items():
        imports = (node for node in nodes(module) if isinstance(node, ast.Import))
        if not any(alias.name == "asyncio" for node in imports for alias in node.names):
            continue
        for node in nodes(module):
            if isinstance(node, ast.Name):
                assert node.id != "TimeoutError", f"{path}:{node.lineno}: asyncio.TimeoutError"
