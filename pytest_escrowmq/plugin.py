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
_IF_MISSING = ("fail", "skip")
_IS_REPORTED = pytest.StashKey[bool]()  # that the service is not installed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("escrowmq").addoption(
        "--escrowmq-exec", help="program of EscrowMQ that the `escrowmq` fixture starts"
    )
    parser.addini("escrowmq_exec", "the same as --escrowmq-exec", default="")
    parser.addini(
        "escrowmq_missing",
        f"what a test does if EscrowMQ is not installed: {' or '.join(_IF_MISSING)}",
        default="fail",
    )
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
def escrowmq_executable(pytestconfig: pytest.Config) -> str:
    """Path of the program `escrowmq`, which may be in another environment.

    Override it to name another program.
    """
    from pytest_escrowmq.executable import ServiceNotInstalled, find_executable

    if_missing = pytestconfig.getini("escrowmq_missing")
    if if_missing not in _IF_MISSING:
        raise pytest.UsageError(f"escrowmq_missing is {' or '.join(_IF_MISSING)}, not {if_missing}")
    named = pytestconfig.getoption("escrowmq_exec") or pytestconfig.getini("escrowmq_exec")
    try:
        return find_executable(named)
    except (FileNotFoundError, ServiceNotInstalled) as error:
        reason, is_not_installed = str(error), isinstance(error, ServiceNotInstalled)
    if is_not_installed and if_missing == "skip":
        pytest.skip(reason)
    if is_not_installed and pytestconfig.stash.get(_IS_REPORTED, False):
        reason = "EscrowMQ is not installed; the first error of this run says what to do."
    pytestconfig.stash[_IS_REPORTED] = is_not_installed
    pytest.fail(reason, pytrace=False)


@pytest.fixture(scope=_scope)
def escrowmq_service(
    tmp_path_factory: pytest.TempPathFactory,
    escrowmq_executable: str,
    escrowmq_settings: dict[str, str],
) -> "Iterator[EscrowMQ]":
    """The service, for as long as the ini option `escrowmq_scope` says."""
    from pytest_escrowmq.service import EscrowMQ

    directory = tmp_path_factory.mktemp("escrowmq")
    with EscrowMQ(directory, escrowmq_settings, executable=escrowmq_executable) as service:
        yield service


@pytest.fixture
def escrowmq(escrowmq_service: "EscrowMQ") -> "Iterator[EscrowMQ]":
    """A service that runs, with no fault switched on; its store is gone after the test."""
    yield escrowmq_service
    escrowmq_service.mend()
