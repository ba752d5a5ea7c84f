"""The tables of the registry. alembic/versions says how they came to be; a test says that the two
agree.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    false,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(column_0_label)s",
    }
)

# Times are wall milliseconds. Names are case-sensitive, as they are in the log.
# One row: the identity of this registry.
registry_identity = Table(
    "registry_identity", metadata, Column("identity", String(32), primary_key=True)
)

# One row: which machine leads, and whether it is alone (app/replicas/leader.py).
service_leader = Table(
    "service_leader",
    metadata,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("node", String(127), nullable=False),
    Column("is_alone", Boolean, nullable=False),
)

topics = Table(
    "topics",
    metadata,
    Column("topic", String(127), primary_key=True),
    Column("queues", Integer, nullable=False),
    Column("message_types", JSON, nullable=False),
    Column("retention_ms", BigInteger, nullable=False),
    Column("max_message_bytes", BigInteger, nullable=False),
    Column("dedup_window_ms", BigInteger, nullable=False),
    Column("max_delay_ms", BigInteger, nullable=False),
    # {kind, mode, json}, where json is the text of the schema
    Column("schema", JSON(none_as_null=True)),
    Column("is_being_deleted", Boolean, nullable=False, server_default=false()),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False),
)

producer_groups = Table(
    "producer_groups",
    metadata,
    Column("producer_group", String(127), primary_key=True),
    Column("check_mode", String(16), nullable=False),
    # Of check_mode webhook. Secrets as the vault keeps them.
    Column("check_url", String(2_048)),
    Column("timeout_ms", Integer),
    Column("concurrency", Integer),
    Column("signing_secret", String(512)),
    Column("previous_secret", String(512)),
    Column("previous_secret_until_ms", BigInteger),
    Column("disabled_at_ms", BigInteger),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False),
)

consumer_groups = Table(
    "consumer_groups",
    metadata,
    Column("consumer_group", String(127), primary_key=True),
    Column("topics", JSON, nullable=False),  # [[topic, kind of filter, expression], ...]
    Column("start", String(16), nullable=False),
    Column("lease_ms", BigInteger, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("backoff_ms", JSON, nullable=False),
    Column("dead_letter", Boolean, nullable=False),
    Column("ordered", Boolean, nullable=False),
    Column("skip_lag_over", BigInteger),
    Column("skip_older_than_ms", BigInteger),
    Column("start_at_ms", BigInteger),
    Column("session_timeout_ms", BigInteger, nullable=False, server_default="120000"),
    Column("queue_rooms", JSON, nullable=False, server_default="{}"),
    # {url, timeout_ms, concurrency, format} of a group whose messages are pushed; secrets as the
    # vault keeps them
    Column("push", JSON(none_as_null=True)),
    Column("signing_secret", String(512)),
    Column("previous_secret", String(512)),
    Column("previous_secret_until_ms", BigInteger),
    Column("disabled_at_ms", BigInteger),
    Column("is_being_deleted", Boolean, nullable=False, server_default=false()),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False),
)

cron_schedules = Table(
    "cron_schedules",
    metadata,
    Column("schedule_id", String(64), primary_key=True),
    Column("cron", String(255), nullable=False),
    Column("time_zone", String(64), nullable=False),
    Column("topic", String(127), nullable=False),
    Column("message", Text, nullable=False),  # JSON, as it was given
    Column("catch_up", String(16), nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("counts_from_ms", BigInteger, nullable=False),
    Column("cancelled_at_ms", BigInteger),
    Column("idempotency_key", String(255)),
    Column("fingerprint", String(64)),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False),
)

# Not used: the owner of a loop, for an engine whose store several processes serve. It stays in the
# schema, as a registry with a later revision is refused by an earlier release.
loop_leases = Table(
    "loop_leases",
    metadata,
    Column("loop", String(64), primary_key=True),
    Column("owner", String(127), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
)

# What came of audits that were asked for; dropped ones stay for a while, so that they are known to
# have been there.
audit_reports = Table(
    "audit_reports",
    metadata,
    Column("report_id", String(64), primary_key=True),
    Column("kind", String(64), nullable=False),
    Column("begun_from_ms", BigInteger),
    Column("begun_to_ms", BigInteger),
    Column("producer_group", String(127)),
    # an earlier version asked for none
    Column("checks", String(255), nullable=False, server_default=""),
    Column("state", String(16), nullable=False),
    Column("starts", Integer, nullable=False),
    Column("exit_status", Integer),
    Column("reason", Text),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("started_at_ms", BigInteger),
    Column("finished_at_ms", BigInteger),
    Column("dropped_at_ms", BigInteger),
    Column("idempotency_key", String(255)),
    Column("fingerprint", String(64)),
)
