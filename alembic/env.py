"""How alembic reaches the registry: the service hands its own connection over, `make migration`
names a scratch database.
"""

from sqlalchemy import Connection, create_engine

from alembic import context
from app.registry.tables import metadata


def run(connection: Connection) -> None:
    context.configure(
        connection=connection, target_metadata=metadata, render_as_batch=True, compare_type=True
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with create_engine(context.get_x_argument(as_dictionary=True)["url"]).begin() as scratch:
        run(scratch)
