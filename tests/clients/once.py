"""The operations that clients send once, as the Python client has them."""

from tests.client.test_contract import call_of, called, operations


def sent_once() -> set[str]:
    """Method and path of each operation that the Python client does not repeat."""
    return {
        f"{method} {path}"
        for name, (method, path, _) in operations().items()
        if name in called() and not call_of(name).repeatable
    }
