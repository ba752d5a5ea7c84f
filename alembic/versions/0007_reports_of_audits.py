"""reports of audits

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_reports",
        sa.Column("report_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("begun_from_ms", sa.BigInteger()),
        sa.Column("begun_to_ms", sa.BigInteger()),
        sa.Column("producer_group", sa.String(127)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("exit_status", sa.Integer()),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_at_ms", sa.BigInteger()),
        sa.Column("finished_at_ms", sa.BigInteger()),
        sa.Column("dropped_at_ms", sa.BigInteger()),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("fingerprint", sa.String(64)),
        sa.PrimaryKeyConstraint("report_id", name=op.f("pk_audit_reports")),
    )


def downgrade() -> None:
    op.drop_table("audit_reports")
