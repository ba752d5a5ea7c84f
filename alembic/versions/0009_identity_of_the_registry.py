"""identity of the registry

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "registry_identity",
        sa.Column("identity", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("identity", name="pk_registry_identity"),
    )


def downgrade() -> None:
    op.drop_table("registry_identity")
