"""checks by webhook

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = (
    ("check_url", sa.String(length=2048)),
    ("timeout_ms", sa.Integer()),
    ("concurrency", sa.Integer()),
    ("signing_secret", sa.String(length=512)),
    ("previous_secret", sa.String(length=512)),
    ("previous_secret_until_ms", sa.BigInteger()),
    ("disabled_at_ms", sa.BigInteger()),
)


def upgrade() -> None:
    with op.batch_alter_table("producer_groups") as table:
        for name, kind in COLUMNS:
            table.add_column(sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("producer_groups") as table:
        for name, _ in reversed(COLUMNS):
            table.drop_column(name)
