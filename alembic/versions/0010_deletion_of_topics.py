"""deletion of topics

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("topics") as table:
        table.add_column(sa.Column("is_being_deleted", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    # without its note it would be an ordinary one
    noted = sa.table("topics", sa.column("is_being_deleted", sa.Boolean))
    op.execute(noted.delete().where(noted.c.is_being_deleted))
    with op.batch_alter_table("topics") as table:
        table.drop_column("is_being_deleted")
