"""members of groups

Revision ID: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("consumer_groups") as table:
        table.add_column(
            sa.Column("session_timeout_ms", sa.BigInteger(), nullable=False, server_default="120000")
        )
        table.add_column(sa.Column("start_at_ms", sa.BigInteger()))
        table.add_column(sa.Column("queue_rooms", sa.JSON(), nullable=False, server_default="{}"))


def downgrade() -> None:
    with op.batch_alter_table("consumer_groups") as table:
        table.drop_column("queue_rooms")
        table.drop_column("start_at_ms")
        table.drop_column("session_timeout_ms")
