"""schemas of topics

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("topics") as table:
        table.add_column(sa.Column("schema", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    with op.batch_alter_table("topics") as table:
        table.drop_column("schema")
