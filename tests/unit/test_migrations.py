"""The migrations of the registry: they make the tables that the code speaks of, can be taken back,
and keep what is there.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, Table, create_engine, insert, inspect, select

from alembic import command
from app.registry.consumer_groups import ConsumerGroup, _from_row
from app.registry.database import (
    HEAD,
    MIGRATIONS,
    Database,
    bring_up_to_date,
    migrate,
    rows,
)
from app.registry.tables import (
    audit_reports,
    consumer_groups,
    cron_schedules,
    loop_leases,
    metadata,
    producer_groups,
    registry_identity,
    service_leader,
    topics,
)
from app.registry.vault import Vault
from delivery.groups import GroupRules
from storage.errors import LaterRegistry

REVISIONS = [script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()][::-1]

ROWS: dict[Table, dict[str, object]] = {
    registry_identity: {"identity": "0123456789abcdef0123456789abcdef"},
    service_leader: {"epoch": 1 << 31, "node": "shop-1", "is_alone": True},
    topics: {
        "topic": "Orders.eu",
        "queues": 4,
        "message_types": ["normal", "transactional"],
        "retention_ms": 1 << 40,
        "max_message_bytes": 1 << 33,
        "dedup_window_ms": 86_400_000,
        "max_delay_ms": 0,
        "is_being_deleted": False,
        "schema": {"kind": "json_schema", "mode": "off", "json": '{"type":"object"}'},
        "created_at_ms": 1_800_000_000_123,
        "revision": 7,
    },
    producer_groups: {
        "producer_group": "shop",
        "check_mode": "webhook",
        "check_url": "https://shop.example/check",
        "timeout_ms": 3_000,
        "concurrency": 16,
        "signing_secret": "whsec_new",
        "previous_secret": None,
        "previous_secret_until_ms": 1 << 41,
        "disabled_at_ms": None,
        "created_at_ms": 1_800_000_000_124,
        "revision": 1,
    },
    cron_schedules: {
        "schedule_id": "sch_1",
        "cron": "0 6 * * 1-5",
        "time_zone": "Europe/Berlin",
        "topic": "Orders.eu",
        "message": '{"json":{"b":1,"a":"\u00e4"}}',
        "catch_up": "skip",
        "paused": True,
        "counts_from_ms": 1 << 41,
        "cancelled_at_ms": None,
        "idempotency_key": "once",
        "fingerprint": "f" * 64,
        "created_at_ms": 1_800_000_000_126,
        "revision": 2,
    },
    audit_reports: {
        "report_id": "rpt_1",
        "kind": "transaction_outcomes",
        "begun_from_ms": 1 << 40,
        "begun_to_ms": None,
        "producer_group": "shop",
        "checks": "queues,delays",
        "state": "failed",
        "starts": 3,
        "exit_status": 3,
        "reason": "it was interrupted",
        "created_at_ms": 1_800_000_000_127,
        "started_at_ms": 1_800_000_000_128,
        "finished_at_ms": 1 << 41,
        "dropped_at_ms": 1 << 42,
        "idempotency_key": "once",
        "fingerprint": "f" * 64,
    },
    loop_leases: {"loop": "cron", "owner": "a", "token": 1 << 40, "expires_at_ms": 1 << 41},
    consumer_groups: {
        "consumer_group": "warehouse",
        "topics": [["Orders.eu", "tag", "paid || created"]],
        "start": "latest",
        "lease_ms": 43_200_000,
        "max_attempts": 3,
        "backoff_ms": [0, 1 << 40],
        "dead_letter": False,
        "ordered": True,
        "skip_lag_over": 1 << 29,
        "skip_older_than_ms": None,
        "start_at_ms": 1 << 40,
        "session_timeout_ms": 1 << 40,
        "queue_rooms": {"Orders.eu/0": "north"},
        "push": {"url": "https://shop.example/in", "timeout_ms": 3_000, "concurrency": 16},
        "signing_secret": "whsec_new",
        "previous_secret": None,
        "previous_secret_until_ms": 1 << 41,
        "disabled_at_ms": None,
        "is_being_deleted": False,
        "created_at_ms": 1_800_000_000_125,
        "revision": 1,
    },
}


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


def differences(connection: Connection) -> list[object]:
    """What a new migration would have to do."""
    return compare_metadata(
        MigrationContext.configure(connection, opts={"compare_type": True}), metadata
    )


def take_back(connection: Connection, revision: str) -> None:
    """Bring the schema down to an older revision."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.downgrade(config, revision)


def tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names()) - {"alembic_version"}


def test_the_migrations_are_one_line_from_nothing():
    directory = ScriptDirectory(str(MIGRATIONS))

    assert directory.get_bases() == REVISIONS[:1]
    assert directory.get_heads() == REVISIONS[-1:]


def test_from_nothing_they_make_the_tables_that_the_code_speaks_of(engine):
    with engine.begin() as connection:
        assert differences(connection) != []

        migrate(connection, "head")

        assert differences(connection) == []
        assert tables(connection) == set(metadata.tables)
        assert {
            name: inspect(connection).get_pk_constraint(name)["name"] for name in metadata.tables
        } == {name: table.primary_key.name for name, table in metadata.tables.items()}


def columns(connection: Connection) -> dict[str, set[tuple[str, str, bool]]]:
    """Their names, types, and whether they may be NULL."""
    return {
        name: {
            (one["name"], str(one["type"]), one["nullable"])
            for one in inspect(connection).get_columns(name)
        }
        for name in inspect(connection).get_table_names()
    }


def test_a_new_database_is_made_as_the_migrations_would_make_it_and_is_migrated_for_alembic(
    engine, new_database
):
    other = create_engine(new_database())
    with engine.begin() as made, other.begin() as migrated:
        bring_up_to_date(made)
        migrate(migrated, "head")

        assert columns(made) == columns(migrated)
        assert differences(made) == []
        assert MigrationContext.configure(made).get_current_heads() == (HEAD,) == (REVISIONS[-1],)

        migrate(made, "base")
        assert tables(made) == set()
    other.dispose()


@pytest.mark.parametrize("revision", REVISIONS)
def test_an_older_database_is_migrated_by_a_start(engine, revision):
    with engine.begin() as connection:
        migrate(connection, revision)

        bring_up_to_date(connection)

        assert differences(connection) == []
        assert MigrationContext.configure(connection).get_current_heads() == (HEAD,)


def test_a_database_of_a_later_release_is_refused(engine):
    with engine.begin() as connection:
        bring_up_to_date(connection)
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")

        with pytest.raises(LaterRegistry, match=f"revision 9999, .* up to {HEAD}"):
            bring_up_to_date(connection)


def test_a_start_that_finds_everything_in_place_does_without_alembic(database_url):
    source = (
        "import sys\nfrom sqlalchemy import create_engine\nfrom app.registry.database import "
        "bring_up_to_date\n"
        f"engine = create_engine({database_url!r})\n"
        "for _ in range(2):\n    with engine.begin() as connection:\n        "
        "bring_up_to_date(connection)\n"
        "sys.exit('alembic' in sys.modules)\n"
    )

    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


def test_taken_back_they_leave_nothing_and_they_can_be_made_again(engine):
    with engine.begin() as connection:
        migrate(connection, "head")
        migrate(connection, "base")
        assert tables(connection) == set()

        migrate(connection, "head")

        assert differences(connection) == []


def test_a_group_that_an_offset_made_before_it_had_rules_reads_no_topics_and_has_the_defaults(
    engine,
):
    with engine.begin() as connection:
        migrate(connection, "0003")
        connection.exec_driver_sql(
            "INSERT INTO consumer_groups VALUES ('warehouse', 1800000000125, 1)"
        )

        migrate(connection, "head")

        (row,) = rows(connection, select(consumer_groups))
    assert _from_row(row, Vault(())) == ConsumerGroup(
        name="warehouse", rules=GroupRules(), created_at_ms=1_800_000_000_125
    )


def test_a_topic_of_before_there_were_schemas_has_none(engine):
    with engine.begin() as connection:
        migrate(connection, "0004")
        connection.exec_driver_sql(
            "INSERT INTO topics VALUES ('orders', 4, '[\"normal\"]', 1, 2, 3, 4, 5, 1)"
        )

        migrate(connection, "head")

        (row,) = rows(connection, select(topics))
    assert (row["topic"], row["schema"], row["revision"]) == ("orders", None, 1)


@pytest.mark.parametrize("revision", REVISIONS)
def test_each_one_alone_can_be_taken_back(engine, revision):
    with engine.begin() as connection:
        below = REVISIONS[: REVISIONS.index(revision)]
        if below:
            migrate(connection, below[-1])
        before = tables(connection)

        migrate(connection, revision)
        migrate(connection, "base")
        if below:
            migrate(connection, below[-1])

        assert tables(connection) == before


@pytest.mark.parametrize(
    ("table", "revision"), [(topics, "0010"), (consumer_groups, "0014")], ids=lambda one: str(one)
)
def test_what_is_being_deleted_is_gone_once_the_note_of_that_is_taken_back(engine, table, revision):
    name = next(iter(table.primary_key))
    with engine.begin() as connection:
        migrate(connection, "head")
        for stored, is_being_deleted in (("kept", False), ("leaves", True)):
            row = ROWS[table] | {name.name: stored, "is_being_deleted": is_being_deleted}
            connection.execute(insert(table).values(**row))

        take_back(connection, REVISIONS[REVISIONS.index(revision) - 1])

        assert "is_being_deleted" not in {found for found, *_ in columns(connection)[table.name]}
        assert list(connection.scalars(select(name))) == ["kept"]


def test_a_start_on_a_database_with_rows_keeps_every_one_of_them(engine):
    with engine.begin() as connection:
        migrate(connection, "head")
        for table, row in ROWS.items():
            connection.execute(insert(table).values(**row))

    with engine.begin() as connection:
        migrate(connection, "head")

    with engine.begin() as connection:
        assert {table: rows(connection, select(table)) for table in ROWS} == {
            table: [row] for table, row in ROWS.items()
        }
    assert set(ROWS) == set(metadata.tables.values()), "a table without a row proves nothing"


async def test_the_service_finds_at_its_second_start_what_its_first_one_made(database_url):
    for known in ([], [ROWS[consumer_groups]]):
        database = Database(database_url)
        await database.open()
        assert (
            await database.run(lambda connection: rows(connection, select(consumer_groups)))
            == known
        )
        if not known:
            await database.run(
                lambda connection: connection.execute(
                    insert(consumer_groups).values(**ROWS[consumer_groups])
                )
            )
        await database.aclose()
