"""Looking at the store and the disk below it."""

from msgspec import UNSET

from app.admin.schemas import Disk
from app.codec import rfc3339
from app.exchange import Call, Reply, reply
from app.services import Services
from storage.errors import NotSupportedByEngine
from storage.store import Retention


async def get_disk(services: Services, _: Call) -> Reply:
    if not isinstance(services.store, Retention):
        raise NotSupportedByEngine("the engine has no disk of its own")
    usage = services.store.disk_usage()
    full_at_ms = usage.projected_full_at_ms
    return reply(
        200,
        Disk(
            used_ratio=usage.used_ratio,
            clean_above=usage.clean_above,
            force_above=usage.force_above,
            refuse_above=usage.refuse_above,
            writable=usage.is_writable,
            projected_full_at=UNSET if full_at_ms is None else rfc3339(full_at_ms),
        ),
    )
