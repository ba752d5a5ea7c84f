"""reports of audits: runs, counts, groups, findings

Revision ID: 0001
"""

import sqlalchemy as sa

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_runs",
        sa.Column("report_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("started_at", sa.String(32), nullable=False),
        sa.Column("finished_at", sa.String(32), nullable=False),
        sa.Column("exit_status", sa.Integer(), nullable=False),
        sa.Column("balanced", sa.Boolean(), nullable=False),
        sa.Column("begun_from", sa.String(32)),
        sa.Column("begun_to", sa.String(32)),
        sa.Column("producer_group", sa.Text()),
        sa.Column("begun", sa.BigInteger(), nullable=False),
        sa.Column("findings", sa.BigInteger(), nullable=False),
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("log_begin", sa.BigInteger(), nullable=False),
        sa.Column("log_end", sa.BigInteger(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("damaged_bytes", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(80), nullable=False),
        sa.Column("engine", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("report_id", name="pk_audit_runs"),
    )
    op.create_table(
        "audit_counts",
        sa.Column("report_id", sa.String(64), nullable=False),
        sa.Column("part", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("report_id", "part", "name", name="pk_audit_counts"),
    )
    op.create_table(
        "audit_groups",
        sa.Column("report_id", sa.String(64), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("producer_group", sa.Text()),
        sa.Column("verdict", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("report_id", "place", "verdict", name="pk_audit_groups"),
    )
    op.create_table(
        "audit_findings",
        sa.Column("report_id", sa.String(64), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.String(64), nullable=False),
        sa.Column("check_name", sa.String(32)),
        sa.Column("transaction_id", sa.Text()),
        sa.Column("producer_group", sa.Text()),
        sa.Column("log_offset", sa.BigInteger()),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("report_id", "place", name="pk_audit_findings"),
    )


def downgrade() -> None:
    for name in ("audit_findings", "audit_groups", "audit_counts", "audit_runs"):
        op.drop_table(name)
