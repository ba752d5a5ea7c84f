"""leader of the service

Revision ID: 0013
Revises: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "service_leader",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node", sa.String(length=127), nullable=False),
        sa.Column("is_alone", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("epoch", name=op.f("pk_service_leader")),
    )


def downgrade() -> None:
    op.drop_table("service_leader")
