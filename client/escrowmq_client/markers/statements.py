"""The SQL of the marker table, by dialect and paramstyle. Pure: text in, text out.

    column          what it is
    transaction_id  the primary key: the id of the transaction, compared byte by byte
    outcome         'commit' (the producer's marker) or 'rollback' (the fence of a check)
    written_at_ms   when it was written, in milliseconds since 1970

The fence inserts 'rollback' where no marker is. It never changes a marker:

    postgresql  ON CONFLICT DO NOTHING waits for a producer that has inserted and not yet committed
    mysql       ON DUPLICATE KEY UPDATE of the key to itself. It locks the found row exclusively, so
                that two fences cannot deadlock over a shared lock; and unlike INSERT IGNORE it
                turns no other error into a warning
    sqlite      INSERT OR IGNORE, behind the one writer of the file

On MySQL the key is ascii_bin: its usual collations hold "Order-1" and "order-1" for the same.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Dialect = Literal["postgresql", "mysql", "sqlite"]
Paramstyle = Literal["qmark", "numeric", "named", "format", "pyformat"]

DIALECTS: tuple[Dialect, ...] = ("postgresql", "mysql", "sqlite")
DEFAULT_TABLE = "escrowmq_markers"
LONGEST_ID = 127  # characters, as the service takes them

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,55}(?:\.[A-Za-z_][A-Za-z0-9_]{0,55})?")
_BIND = re.compile(r":(\w+)")

_CREATE: dict[Dialect, tuple[str, ...]] = {
    "postgresql": (
        "CREATE TABLE IF NOT EXISTS {table} (\n"
        '    transaction_id VARCHAR(127) COLLATE "C" NOT NULL PRIMARY KEY,\n'
        "    outcome VARCHAR(8) NOT NULL CHECK (outcome IN ('commit', 'rollback')),\n"
        "    written_at_ms BIGINT NOT NULL\n"
        ")",
        "CREATE INDEX IF NOT EXISTS {name}_written_at ON {table} (written_at_ms)",
    ),
    "mysql": (
        "CREATE TABLE IF NOT EXISTS {table} (\n"
        "    transaction_id VARCHAR(127) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
        " PRIMARY KEY,\n"
        "    outcome VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
        " CHECK (outcome IN ('commit', 'rollback')),\n"
        "    written_at_ms BIGINT NOT NULL,\n"
        "    INDEX {name}_written_at (written_at_ms)\n"
        ") ENGINE = InnoDB",
    ),
    "sqlite": (
        "CREATE TABLE IF NOT EXISTS {table} (\n"
        "    transaction_id TEXT NOT NULL PRIMARY KEY,\n"
        "    outcome TEXT NOT NULL CHECK (outcome IN ('commit', 'rollback')),\n"
        "    written_at_ms INTEGER NOT NULL\n"
        ")",
        "CREATE INDEX IF NOT EXISTS {name}_written_at ON {table} (written_at_ms)",
    ),
}
_ROW = "{table} (transaction_id, outcome, written_at_ms) VALUES (:transaction_id, "
_MARK = f"INSERT INTO {_ROW}'commit', :written_at_ms)"
_FENCE: dict[Dialect, str] = {
    "postgresql": f"INSERT INTO {_ROW}'rollback', :written_at_ms) ON CONFLICT DO NOTHING",
    "mysql": (
        f"INSERT INTO {_ROW}'rollback', :written_at_ms)"
        " ON DUPLICATE KEY UPDATE transaction_id = transaction_id"
    ),
    "sqlite": f"INSERT OR IGNORE INTO {_ROW}'rollback', :written_at_ms)",
}
_READ = "SELECT outcome FROM {table} WHERE transaction_id = :transaction_id"
_OLDEST = (
    "SELECT transaction_id FROM {table} WHERE written_at_ms < :before_ms"
    " ORDER BY written_at_ms LIMIT :most"
)
_DELETE = "DELETE FROM {table} WHERE transaction_id = :transaction_id"

# In which a fence reads a marker that it has waited for, and none that is not committed: the level
# that the connection came with could be another. MySQL takes its snapshot at the first read, which
# is behind the insert; some settings of its binary log refuse writes below REPEATABLE READ.
ISOLATION: dict[Dialect, str | None] = {
    "postgresql": "READ COMMITTED",
    "mysql": "REPEATABLE READ",
    "sqlite": None,
}

# How long a fence waits for a lock. The first one asks for the limit in force, which is set again
# afterwards, as the connection may be one of a pool; PostgreSQL forgets it with the transaction.
_WAIT_LIMIT: dict[Dialect, tuple[str | None, str]] = {
    "postgresql": (None, "SET LOCAL lock_timeout = {limit}"),  # milliseconds
    "mysql": (
        "SELECT @@SESSION.innodb_lock_wait_timeout",
        "SET SESSION innodb_lock_wait_timeout = {limit}",  # seconds
    ),
    "sqlite": ("PRAGMA busy_timeout", "PRAGMA busy_timeout = {limit}"),  # milliseconds
}


@dataclass(frozen=True)
class Statement:
    """One statement in the paramstyle of a driver."""

    text: str
    names: tuple[str, ...]
    is_by_name: bool

    def values(self, given: dict[str, object]) -> dict[str, object] | tuple[object, ...]:
        """The values in the form in which the driver takes them."""
        if self.is_by_name:
            return {name: given[name] for name in self.names}
        return tuple(given[name] for name in self.names)


@dataclass(frozen=True)
class Statements:
    """Every statement on one marker table."""

    dialect: Dialect
    create: tuple[Statement, ...]
    mark: Statement
    fence: Statement
    read: Statement
    oldest: Statement
    delete: Statement
    wait_limit: Statement | None

    def set_wait_limit(self, limit: int) -> Statement:
        """`limit` in the unit of the dialect."""
        return Statement(_WAIT_LIMIT[self.dialect][1].format(limit=int(limit)), (), False)

    def wait_limit_of(self, wait_ms: int) -> int:
        """`wait_ms` in the unit of the dialect, at least one of it."""
        return max(1, -(-wait_ms // 1000) if self.dialect == "mysql" else wait_ms)


def statements(dialect: Dialect, paramstyle: Paramstyle, table: str) -> Statements:
    """Raises ValueError if the dialect is not known, or the name of the table is not a plain one.

    `table`: letters, digits and underscores, with a schema in front if need be.
    """
    if dialect not in DIALECTS:
        raise ValueError(f"the dialect is one of {', '.join(DIALECTS)}, not {dialect!r}")
    if _TABLE.fullmatch(table) is None:
        raise ValueError(f"{table!r} is not the plain name of a table")

    def made(template: str) -> Statement:
        text = template.format(table=table, name=table.rpartition(".")[2])
        return _bound(text, paramstyle)

    limit = _WAIT_LIMIT[dialect][0]
    return Statements(
        dialect=dialect,
        create=tuple(made(one) for one in _CREATE[dialect]),
        mark=made(_MARK),
        fence=made(_FENCE[dialect]),
        read=made(_READ),
        oldest=made(_OLDEST),
        delete=made(_DELETE),
        wait_limit=None if limit is None else made(limit),
    )


def ddl(dialect: Dialect, table: str = DEFAULT_TABLE) -> str:
    """The statements that create the table, for a migration: each ends with a semicolon."""
    made = statements(dialect, "named", table).create
    return "".join(f"{one.text};\n" for one in made)


def _bound(template: str, paramstyle: Paramstyle) -> Statement:
    names = tuple(_BIND.findall(template))
    numbers = iter(range(1, len(names) + 1))
    placeholders: dict[str, Callable[[str], str]] = {
        "qmark": lambda name: "?",
        "numeric": lambda name: f":{next(numbers)}",
        "named": lambda name: f":{name}",
        "format": lambda name: "%s",
        "pyformat": lambda name: f"%({name})s",
    }
    if paramstyle not in placeholders:
        raise ValueError(f"the paramstyle is one of {', '.join(placeholders)}, not {paramstyle!r}")
    write = placeholders[paramstyle]
    text = _BIND.sub(lambda found: write(found[1]), template)
    return Statement(text, names, paramstyle in ("named", "pyformat"))
