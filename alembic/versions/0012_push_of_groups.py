"""push of groups

Revision ID: 0012
Revises: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("consumer_groups") as table:
        table.add_column(sa.Column("push", sa.JSON(none_as_null=True)))
        table.add_column(sa.Column("signing_secret", sa.String(512)))
        table.add_column(sa.Column("previous_secret", sa.String(512)))
        table.add_column(sa.Column("previous_secret_until_ms", sa.BigInteger()))
        table.add_column(sa.Column("disabled_at_ms", sa.BigInteger()))


def downgrade() -> None:
    with op.batch_alter_table("consumer_groups") as table:
        table.drop_column("disabled_at_ms")
        table.drop_column("previous_secret_until_ms")
        table.drop_column("previous_secret")
        table.drop_column("signing_secret")
        table.drop_column("push")
