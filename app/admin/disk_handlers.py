"""The disk of the store, over HTTP."""

from app.admin.disk_schemas import Disk
from app.admin.disk_view import view
from app.http.exchange import Call, Reply, reply
from app.operations import operation
from app.services import Services


@operation(
    "GET",
    "/v1/admin/disk",
    "getDisk",
    tag="admin",
    scopes=["admin"],
    answers={200: Disk},
    problems=["not_supported_by_engine"],
)
async def get_disk(services: Services, _: Call) -> Reply:
    """Get the usage and the load of the disk, with a diagnosis in words.

    Above `clean_above` expired segments are deleted at any hour; above `refuse_above` new messages
    are rejected. `writable` says whether new messages are accepted, and `projected_full_at` when
    that ends at the present rate.

    `device`, `process`, `reads`, `pressure` and `log` have means of the last half minute, measured
    every five seconds; `cache` is that of the newest measurement. `absent` names each field that
    this machine does not show, and why. `diagnoses` has the causes of slow reads and writes, and of
    a full disk, with advice.
    """
    usage, now_ms = services.admin.disk_usage(), services.clock.wall_ms()
    return reply(200, view(usage, services.disk, now_ms))
