"""The fixtures.

What they need is imported when a test asks for it: every run of pytest loads this file.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, cast, get_args

import pytest

if TYPE_CHECKING:
    from pytest_escrowmq.service import EscrowMQ

_Scope = Literal["function", "class", "module", "package", "session"]
_SCOPES: tuple[str, ...] = get_args(_Scope)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "escrowmq_scope",
        f"how long a service that the `escrowmq` fixture has started lives: {', '.join(_SCOPES)}",
        default="function",
    )


def _scope(fixture_name: str, config: pytest.Config) -> _Scope:  # noqa: ARG001
    # pytest passes both by name.
    scope = config.getini("escrowmq_scope")
    if scope not in _SCOPES:
        raise pytest.UsageError(f"escrowmq_scope is one of {', '.join(_SCOPES)}, not {scope}")
    return cast("_Scope", scope)


@pytest.fixture(scope=_scope)
def escrowmq_settings() -> dict[str, str]:
    """Settings of the service, as its environment has them.

    Override it: `{"ESCROWMQ_TXN__MAX_OPEN": "10"}`.
    """
    return {}


@pytest.fixture(scope=_scope)
def escrowmq_service(
    tmp_path_factory: pytest.TempPathFactory, escrowmq_settings: dict[str, str]
) -> "Iterator[EscrowMQ]":
    """The service, for as long as the ini option `escrowmq_scope` says."""
    from pytest_escrowmq.service import EscrowMQ

    with EscrowMQ(tmp_path_factory.mktemp("escrowmq"), escrowmq_settings) as service:
        yield service


@pytest.fixture
def escrowmq(escrowmq_service: "EscrowMQ") -> "Iterator[EscrowMQ]":
    """A service that runs, with no fault switched on; its store is gone after the test."""
    yield escrowmq_service
    escrowmq_service.mend()
