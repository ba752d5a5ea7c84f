"""The tables that a report becomes.

Times are texts as the API writes them, which sort as times do.
"""

from sqlalchemy import BigInteger, Boolean, Column, Integer, MetaData, String, Table, Text

# the registry may lie in the same database, with migrations of its own
VERSION_TABLE = "audit_version"

metadata = MetaData(naming_convention={"pk": "pk_%(table_name)s"})

runs = Table(
    "audit_runs",
    metadata,
    Column("report_id", String(64), primary_key=True),
    Column("kind", String(64), nullable=False),
    Column("started_at", String(32), nullable=False),
    Column("finished_at", String(32), nullable=False),
    Column("exit_status", Integer, nullable=False),
    Column("balanced", Boolean, nullable=False),
    Column("begun_from", String(32)),  # what was asked: these transactions only
    Column("begun_to", String(32)),
    Column("producer_group", Text),
    Column("begun", BigInteger, nullable=False),
    Column("findings", BigInteger, nullable=False),
    Column("log", Text, nullable=False),
    Column("log_begin", BigInteger, nullable=False),
    Column("log_end", BigInteger, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("damaged_bytes", BigInteger, nullable=False),
    Column("digest", String(80), nullable=False),
    Column("engine", String(64), nullable=False),
)

# Every verdict and flag, zero or not, and every kind of the checks that were asked.
counts = Table(
    "audit_counts",
    metadata,
    Column("report_id", String(64), primary_key=True),
    Column("part", String(32), primary_key=True),  # verdicts, flags, or the name of a check
    Column("name", String(64), primary_key=True),
    Column("number", BigInteger, nullable=False),
)

# The producer groups that the report lists, each with the verdicts that it has.
groups = Table(
    "audit_groups",
    metadata,
    Column("report_id", String(64), primary_key=True),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("producer_group", Text),  # null: of transactions whose half is not in the log
    Column("verdict", String(64), primary_key=True),
    Column("number", BigInteger, nullable=False),
)

# The findings that the report lists.
findings = Table(
    "audit_findings",
    metadata,
    Column("report_id", String(64), primary_key=True),
    Column("place", Integer, primary_key=True, autoincrement=False),  # in the report
    Column("verdict", String(64), nullable=False),
    Column("check_name", String(32)),
    Column("transaction_id", Text),
    Column("producer_group", Text),
    Column("log_offset", BigInteger),  # of the first record that proves it
    Column("evidence", Text, nullable=False),  # JSON: the rest of the finding
)
