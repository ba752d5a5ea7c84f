"""cron schedules and loop leases

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cron_schedules",
        sa.Column("schedule_id", sa.String(length=64), nullable=False),
        sa.Column("cron", sa.String(length=255), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("topic", sa.String(length=127), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("catch_up", sa.String(length=16), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("counts_from_ms", sa.BigInteger(), nullable=False),
        sa.Column("cancelled_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("schedule_id", name=op.f("pk_cron_schedules")),
    )
    op.create_table(
        "loop_leases",
        sa.Column("loop", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=127), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("loop", name=op.f("pk_loop_leases")),
    )


def downgrade() -> None:
    op.drop_table("loop_leases")
    op.drop_table("cron_schedules")
