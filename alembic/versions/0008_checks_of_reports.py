"""checks of reports

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("audit_reports") as table:
        table.add_column(sa.Column("checks", sa.String(255), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("audit_reports") as table:
        table.drop_column("checks")
