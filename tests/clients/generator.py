"""A generator of clients, as the test of generated clients takes it."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.clients.workplace import Workplace


@dataclass(frozen=True)
class Generator:
    """How a client is generated and compiled, and how its live program is started.

    `name`: that of its folder under openapi/clients. `needs`: the commands that the machine must
    have. `suffix`: of the files in the folder `generated`, whose lines are counted.
    """

    name: str
    language: str
    needs: tuple[str, ...]
    suffix: str
    install: Callable[[Workplace], object]
    generate: Callable[[Workplace], object]
    compile: Callable[[Workplace], object]
    live: tuple[str, ...]
