"""How delivery under leases is set up."""

from dataclasses import dataclass

from storage.option_checks import require_at_least


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    max_pending: int = 100_000
    closed_kept: int = 20_000
    cancelled_kept: int = 100_000
    sweep_interval_ms: int = 50
    snapshot_interval_ms: int = 10_000

    def __post_init__(self) -> None:
        require_at_least(1, self)


@dataclass(frozen=True, kw_only=True)
class DeliveryOptions:
    max_tasks: int = 100  # redrives of dead letters that run at once
    # that one group reads, or has positions in: each receive looks at all of them
    max_group_queues: int = 2_048
    max_positions: int = 262_144  # of all groups in their queues, up to 800 bytes each
    max_metric_groups: int = 1_000  # that have metrics of their own; 0 for none
    sweep_interval_ms: int = 50
    snapshot_interval_ms: int = 10_000

    def __post_init__(self) -> None:
        require_at_least(0, self)
        require_at_least(1, self, [name for name in vars(self) if name != "max_metric_groups"])


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    max_members: int = 10_000  # of all groups
    max_group_members: int = 1_000
    max_named_queues: int = 200_000  # of all members that name theirs
    max_broadcast_offsets: int = 200_000  # of all clients of broadcast groups
    lock_ms: int = 60_000  # how long a queue stays locked without a renewal
    share_interval_ms: int = 20_000  # between looks at the number of queues
    sweep_interval_ms: int = 100
    snapshot_interval_ms: int = 10_000

    def __post_init__(self) -> None:
        require_at_least(1, self)
