"""Operations of the store and the service, for operators."""

from escrowmq_client.call import Call, decoded, fields, json_headers, query
from escrowmq_client.models.admin import (
    Config,
    Disk,
    Flushed,
    LoopList,
    NodePromise,
    Promotion,
    RecoveryView,
    ReplicaList,
    RetentionPreview,
    Store,
    SyncedState,
    Version,
    Whoami,
)
from escrowmq_client.models.tasks import Task


def get_disk() -> Call[Disk]:
    """Get disk usage, its thresholds, and whether new messages are accepted."""
    return Call("getDisk", "GET", "/v1/admin/disk", decoded(Disk))


def list_loops() -> Call[LoopList]:
    """List the background loops: last run, lag and errors."""
    return Call("listLoops", "GET", "/v1/admin/loops", decoded(LoopList))


def get_store() -> Call[Store]:
    """Get metrics of the store."""
    return Call("getStore", "GET", "/v1/admin/store", decoded(Store))


def flush_store() -> Call[Flushed]:
    """Sync everything stored so far to disk. It is there when the call returns.

    Raises Overloaded (not_enough_copies).
    """
    return Call("flushStore", "POST", "/v1/admin/store/flush", decoded(Flushed))


def verify_store() -> Call[Task]:
    """Verify every file of the store, as a task. While it runs, another call returns the same."""
    return Call("verifyStore", "POST", "/v1/admin/store/verify", decoded(Task))


def run_retention() -> Call[Task]:
    """Delete every expired segment now, as a task. `preview_retention` lists them."""
    return Call(
        "runRetention",
        "POST",
        "/v1/admin/retention/run",
        decoded(Task),
        headers=json_headers(),
        body=fields(dry_run=False),
    )


def preview_retention() -> Call[RetentionPreview]:
    """List the segments that `run_retention` would delete, and delete nothing."""
    return Call(
        "runRetention",
        "POST",
        "/v1/admin/retention/run",
        decoded(RetentionPreview),
        headers=json_headers(),
        body=fields(dry_run=True),
    )


def get_recovery_report() -> Call[RecoveryView]:
    """Get the recovery report of the last start, and those of earlier starts."""
    return Call("getRecoveryReport", "GET", "/v1/admin/recovery", decoded(RecoveryView))


def list_replicas() -> Call[ReplicaList]:
    """List the replicas that are connected: how far each is."""
    return Call("listReplicas", "GET", "/v1/admin/replicas", decoded(ReplicaList))


def get_promise() -> Call[NodePromise]:
    """Get what a node has promised, and how far its log is. A replica answers, too."""
    return Call("getPromise", "GET", "/v1/admin/promise", decoded(NodePromise))


def make_promise(*, epoch: int, node: str, hand_over: bool = False) -> Call[NodePromise]:
    """Have a replica promise to follow no primary of an earlier epoch, before `node` is one.

    `escrowmq replica promote` does so. A service that runs promises nothing, and `granted` is
    false; with `hand_over` it stops and follows `node`. Raises ProblemError (validation_failed).
    """
    return Call(
        "makePromise",
        "PUT",
        "/v1/admin/promise",
        decoded(NodePromise),
        headers=json_headers(),
        body=fields(epoch=epoch, node=node, hand_over=hand_over),
    )


def promote_node(*, hand_over: bool = False, accept_loss: bool = False) -> Call[Promotion]:
    """Have a replica that runs `escrowmq node` take the place of the service.

    `hand_over`: a service that runs stops first. `accept_loss`: also where the lost service was
    alone, without the messages that only that one has. The node opens its log then; `/readyz` says
    when it takes requests. Raises Conflict (not_promoted), NotPrimary.
    """
    return Call(
        "promoteNode",
        "POST",
        "/v1/admin/promotion",
        decoded(Promotion),
        headers=json_headers(),
        body=fields(hand_over=hand_over, accept_loss=accept_loss),
    )


def get_config() -> Call[Config]:
    """Get the effective settings of the service, without secrets."""
    return Call("getConfig", "GET", "/v1/admin/config", decoded(Config))


def get_durability(*, offset: int | None = None, wait_ms: int = 0) -> Call[SyncedState]:
    """Get how far the log is synced to disk.

    With `wait_ms` the answer waits until the log offset of a receipt is synced.
    """
    return Call(
        "getDurability",
        "GET",
        "/v1/store/durability",
        decoded(SyncedState),
        query=query(offset=offset, wait_ms=wait_ms or None),
        wait_ms=wait_ms,
    )


def get_whoami() -> Call[Whoami]:
    """Get the identity and the permissions of the caller."""
    return Call("getWhoami", "GET", "/v1/whoami", decoded(Whoami))


def get_version() -> Call[Version]:
    """Get the version of the service."""
    return Call("getVersion", "GET", "/v1/version", decoded(Version))
