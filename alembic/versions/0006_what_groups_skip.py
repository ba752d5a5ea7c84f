"""what groups skip

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

COLUMNS = ("skip_lag_over", "skip_older_than_ms")


def upgrade() -> None:
    with op.batch_alter_table("consumer_groups") as table:
        for name in COLUMNS:
            table.add_column(sa.Column(name, sa.BigInteger()))


def downgrade() -> None:
    with op.batch_alter_table("consumer_groups") as table:
        for name in reversed(COLUMNS):
            table.drop_column(name)
