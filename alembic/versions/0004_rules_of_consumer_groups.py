"""rules of consumer groups

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Groups that were made by an offset alone read no topics, and have the defaults of this release.
_BACKOFF = "[10000,30000,60000,120000,180000,240000,300000,360000,420000,480000,540000,600000,1200000,1800000,3600000,7200000]"
COLUMNS = (
    ("topics", sa.JSON(), "[]"),
    ("start", sa.String(length=16), "earliest"),
    ("lease_ms", sa.BigInteger(), "30000"),
    ("max_attempts", sa.Integer(), "17"),
    ("backoff_ms", sa.JSON(), _BACKOFF),
    ("dead_letter", sa.Boolean(), sa.true()),
    ("ordered", sa.Boolean(), sa.false()),
)


def upgrade() -> None:
    with op.batch_alter_table("consumer_groups") as table:
        for name, kind, default in COLUMNS:
            table.add_column(sa.Column(name, kind, nullable=False, server_default=default))


def downgrade() -> None:
    with op.batch_alter_table("consumer_groups") as table:
        for name, _, _ in reversed(COLUMNS):
            table.drop_column(name)
