"""Makes the parts of the service from its settings, and lists them as components.

Nothing is started here. A new part is made here, and has one line in `components_of`.
"""

import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from os import sysconf
from typing import NamedTuple

from app.bodies.thread import BodyThread
from app.clock_steps import ClockSteps
from app.components.component import CallbackComponent, Component
from app.components.delivery import DeliveryComponent, RequestsComponent
from app.components.disk import DiskComponent
from app.components.hand_over import BrokerFilesComponent, take_over_component
from app.components.members import MembersComponent
from app.components.names import NamesComponent
from app.components.push import PushComponent
from app.components.rates import RatesComponent
from app.components.registry import RegistryComponent
from app.components.replicas import ReplicasComponent
from app.components.retention import RetentionComponent
from app.components.schedules import CronComponent, SchedulesComponent
from app.components.transactions import CheckSenderComponent, TransactionsComponent
from app.disk.kernel_files import KernelFiles
from app.disk.watch import DiskWatch
from app.entry_pace import EntryPace
from app.hand_over.broker_files import BrokerFiles
from app.hand_over.take_over import TakeOver
from app.http.connections import Connections
from app.idempotency.keys import IdempotencyKeys
from app.long_polls import LongPolls
from app.names.http_server import servers_of
from app.names.nodes import ServiceNode, identity_of
from app.names.registrar import Deposed, Registrar
from app.names.table import NameTable
from app.observability.metrics import Metrics
from app.observability.rates import RateWatch
from app.push.endpoints import PushEndpoints
from app.registry.audit_reports import AuditReportRows
from app.registry.consumer_groups import ConsumerGroups
from app.registry.cron_schedules import CronSchedules
from app.registry.database import Database
from app.registry.producer_groups import ProducerGroups
from app.registry.topics import Topics
from app.registry.vault import Vault
from app.replicas.leader_row import LeaderRow
from app.replicas.listener import ReplicaListener
from app.replicas.missing_replicas import MissingReplicas
from app.reports.service import AuditReports
from app.schedules import occurrence
from app.services import Services
from app.settings import Settings, effective
from app.store_tasks import StoreTasks
from app.testing.clock import VirtualClock
from app.testing.controls import Controls
from app.testing.faults import SlowAnswers
from app.testing.travel import TimeTravel
from app.topic_deletions import TopicDeletions
from app.webhooks.probe import CheckProbe
from app.webhooks.service import Webhooks
from app.webhooks.signed_post import SignedPost
from delivery.members.service import Members
from delivery.push import Pusher
from delivery.requests.service import Requests
from delivery.service import Delivery
from scheduler.cron_service import CronService
from scheduler.loops import Loops
from scheduler.schedule_service import ScheduleService
from scheduler.scheduled_message import delay
from storage.clock import Clock, SystemClock
from storage.identifiers import Identifiers, SystemRandom
from storage.local.local_store import LocalMessageStore
from storage.local.options import FlushPolicy
from storage.message import Durability, safe_on
from txn.check_sender import CheckSender
from txn.coordinator import TransactionCoordinator
from txn.producer import ProducerClient

# The loops that act on what falls due and return how much they did, in the order in which tests
# that move the clock run them.
ACTING = ("schedules", "cron", "leases", "members", "checkback", "webhooks")

_CACHED_SHARE = 0.4  # of memory; RocketMQ's accessMessageInMemoryMaxRatio


class Base(NamedTuple):
    """Inputs of all parts: the settings, and what is open already.

    `takes_over_ours`: the files of a store that EscrowMQ has used with another registry.
    """

    settings: Settings
    clock: Clock
    identifiers: Identifiers
    store: LocalMessageStore
    database: Database
    metrics: Metrics
    loops: Loops
    connections: Connections
    controls: Controls | None
    takes_over_ours: bool = False


def services_of(base: Base) -> Services:
    """Make all parts of the service."""
    settings, clock, identifiers, store = base.settings, base.clock, base.identifiers, base.store
    topics, producer_groups, consumer_groups = _registry(base)
    transactions = _transactions(base)
    delivery, requests, members = _delivery(base, topics, consumer_groups)
    take_over, broker_files = _hand_over(base, topics, consumer_groups, delivery, transactions)
    schedules, cron = _schedules(base, topics)
    signed_post = _signed_post(base)
    webhooks, sender = _checks(base, signed_post, producer_groups, transactions)
    services = Services(
        store=store,
        pressure=store.pressure,
        default_durability=_durability(settings),
        topics=topics,
        topic_deletions=TopicDeletions(
            topics=topics, store=store, transactions=transactions, schedules=schedules, cron=cron,
            consumer_groups=consumer_groups, delivery=delivery, members=members
        ),
        producer_groups=producer_groups,
        consumer_groups=consumer_groups,
        transactions=transactions,
        schedules=schedules,
        cron=cron,
        delivery=delivery,
        members=members,
        requests=requests,
        take_over=take_over,
        broker_files=broker_files,
        idempotency=IdempotencyKeys(store, clock),
        signed_post=signed_post,
        webhooks=webhooks,
        pusher=Pusher(
            delivery,
            PushEndpoints(signed_post, consumer_groups, base.metrics),
            clock,
            rules_of=consumer_groups.rules_of,
            most=max(1, signed_post.most_connections // 2),  # the others are for checks
        ),
        sender=sender,
        reports=_reports(base),
        store_tasks=StoreTasks(clock, lambda: identifiers.new("task")),
        disk=_disk(base),
        rates=_rates(base),
        replicas=ReplicaListener(
            store,
            settings.local.segment_bytes,
            settings.data_dir,
            clock,
            settings.replica,
            registry_changes=lambda: base.database.changes,
        ),
        missing_replicas=MissingReplicas(
            store,
            LeaderRow(base.database) if settings.is_registry_shared else None,
            clock,
            settings.replica,
        ),
        tester=CheckProbe(sender, webhooks, clock, identifiers),
        clock=clock,
        clock_steps=ClockSteps(clock),
        identifiers=identifiers,
        metrics=base.metrics,
        loops=base.loops,
        effective_settings=effective(settings),
        has_keys=bool(settings.keys),
        connections=base.connections,
        long_polls=_long_polls(base),
        max_line_bytes=settings.http.max_body_bytes,
        entry_pace=EntryPace(
            settings.http.stream_idle_ms, settings.http.least_entry_bytes, base.metrics
        ),
        keep_alive_ms=settings.http.keep_alive_ms,
        max_body_values=settings.http.max_body_values,
        body_thread=BodyThread(),
    )  # fmt: skip
    consumer_groups.end = services.end_group
    return services


def names_of(
    base: Base,
    services: Services,
    table: NameTable,
    *,
    is_ready: Callable[[], bool],
    on_deposed: Callable[[Deposed], None],
) -> NamesComponent:
    """Make what registers the service, which starts before all other components.

    `on_deposed` is called where another node is the service.
    """
    settings, store, topics = base.settings, base.store, services.topics
    node = ServiceNode(
        identity_of(settings.names, settings.replica, host=settings.host, port=settings.port),
        service_id=base.database.identity,
        epoch=lambda: store.epochs.last_epoch,
        end_offset=store.on_disk_end,
        topics=lambda: [topic.settings for topic in topics.all()],
        is_ready=is_ready,
    )
    registrar = Registrar(
        node,
        table,
        servers_of(settings.names, settings.api_keys),
        settings.names,
        on_deposed=on_deposed,
    )

    def note_change() -> None:
        node.note_change()
        registrar.note_change()

    topics.on_changed = note_change
    return NamesComponent(registrar, table)


def components_of(base: Base, services: Services) -> list[Component]:
    """The components above the store, in the order of their start; they stop in reverse."""
    clock, settings = base.clock, base.settings
    return [
        ReplicasComponent(services.replicas, services.missing_replicas, services.stopping),
        RetentionComponent(services, base.store),
        DiskComponent(services.disk, base.metrics),
        RatesComponent(services.rates),
        BrokerFilesComponent(
            services.take_over,
            services.broker_files,
            clock,
            interval_ms=settings.delivery.snapshot_interval_ms,
        ),
        RegistryComponent(
            base.database,
            services.topics,
            services.producer_groups,
            services.consumer_groups,
            lambda: services.take_over.topics,
            reload=services.reload_registry,
            then=services.finish_deletions,
        ),
        DeliveryComponent(
            services.delivery, services.consumer_groups, clock, settings.delivery, base.metrics
        ),
        MembersComponent(services.members, clock, settings.member),
        take_over_component(services.take_over, services.broker_files),
        RequestsComponent(services.requests, clock, settings.request),
        SchedulesComponent(services.schedules, clock, settings.schedule),
        CronComponent(services.cron, clock, settings.schedule),
        CallbackComponent(stop=services.signed_post.aclose),
        TransactionsComponent(services.transactions, services.idempotency, clock, settings.txn),
        CheckSenderComponent(services.sender, settings.txn),
        PushComponent(services.pusher),
        CallbackComponent(stop=services.idempotency.drain),
        CallbackComponent(start=services.reports.open, stop=services.reports.stop),
        CallbackComponent(start=services.finish_deletions, stop=services.topic_deletions.drain),
        CallbackComponent(stop=services.body_thread.aclose),
        CallbackComponent(stop=services.store_tasks.stop),
    ]


def time_travel(clock: VirtualClock, services: Services) -> TimeTravel:
    """Move the clock of tests with the loops, which have been collected."""
    tickers = {ticker.name: ticker for ticker in services.loops.tickers}
    transactions = services.transactions
    return TimeTravel(
        clock,
        services.sender,
        acting=[tickers[name] for name in ACTING],
        keeping=[ticker for name, ticker in tickers.items() if name not in ACTING],
        wall_moments=[
            transactions.table.next_due_ms,
            services.schedules.next_due_ms,
            services.cron.table.next_due_ms,
        ],
        monotonic_moments=[
            transactions.next_return_ms,
            services.sender.next_due_ms,
            services.delivery.next_due_ms,
            services.members.next_due_ms,
        ],
    )


def _registry(base: Base) -> tuple[Topics, ProducerGroups, ConsumerGroups]:
    settings, clock, database = base.settings, base.clock, base.database
    topics = Topics(
        database,
        base.store,
        clock,
        settings.limit,
        creates_on_use=settings.dev,
        retention_ms=settings.local.retention_ms,
    )
    vault = Vault(settings.webhook.encryption_keys)
    producer_groups = ProducerGroups(database, clock, vault, settings.limit)
    return topics, producer_groups, ConsumerGroups(database, clock, vault, settings.limit)


def _transactions(base: Base) -> TransactionCoordinator:
    return TransactionCoordinator(
        base.store,
        base.clock,
        base.identifiers,
        base.settings.txn,
        delay=delay,
        on_decided=base.metrics.note_decided,
        on_published=base.metrics.messages_in.inc,
    )


def _delivery(
    base: Base, topics: Topics, groups: ConsumerGroups
) -> tuple[Delivery, Requests, Members]:
    """Make delivery, requests and members: a reply acknowledges, a cancelled request is skipped,
    and what members own is not leased.
    """
    requests = Requests(
        base.store,
        base.clock,
        base.identifiers,
        base.settings.request,
        ack_beside=lambda *asked: delivery.ack_beside(*asked),
    )
    delivery = Delivery(
        base.store,
        base.clock,
        SystemRandom(),
        new_task_id=lambda: base.identifiers.new("task"),
        rules_of=groups.rules_of,
        cancelled_requests=requests,
        has_members=lambda group: members.is_in_use(group),
        cached_bytes=int(_CACHED_SHARE * sysconf("SC_PHYS_PAGES") * sysconf("SC_PAGE_SIZE")),
        options=base.settings.delivery,
    )

    def queue_count(group: str, topic: str) -> int:
        rules = groups.rules_of(group)
        is_read = rules is not None and any(one.topic == topic for one in rules.subscriptions)
        return topics.queue_count(topic) if is_read else 0

    def rooms_of(group: str) -> Mapping[str, str]:
        rules = groups.rules_of(group)
        return {} if rules is None else rules.queue_rooms

    members = Members(
        base.store,
        base.clock,
        base.identifiers,
        base.settings.member,
        positions=delivery,
        queue_count=queue_count,
        rooms_of=rooms_of,
    )
    return delivery, requests, members


def _hand_over(
    base: Base,
    topics: Topics,
    groups: ConsumerGroups,
    delivery: Delivery,
    transactions: TransactionCoordinator,
) -> tuple[TakeOver, BrokerFiles]:
    store, files = base.store, base.store.config_files
    retention_ms = base.settings.local.retention_ms
    return (
        TakeOver(
            files,
            store,
            topics,
            groups,
            delivery,
            retention_ms=retention_ms,
            also_ours=base.takes_over_ours,
        ),
        BrokerFiles(
            files,
            store,
            topics,
            groups,
            delivery,
            base.clock,
            asking_from=transactions.asking_from,
            keep=store.keep_config,
        ),
    )


def _schedules(base: Base, topics: Topics) -> tuple[ScheduleService, CronService]:
    store, clock, options = base.store, base.clock, base.settings.schedule
    schedules = ScheduleService(store, clock, options, on_delivered=base.metrics.note_delivered)
    cron = CronService(
        store,
        CronSchedules(base.database),
        clock,
        options,
        build=occurrence.builder(topics, base.identifiers, clock),
        on_settled=base.metrics.note_cron,
    )
    return schedules, cron


def _signed_post(base: Base) -> SignedPost:
    return SignedPost(
        base.settings.webhook,
        base.clock,
        version=version("escrowmq"),
        receiver_clock=base.clock if base.controls is None else SystemClock(),
    )


def _checks(
    base: Base, post: SignedPost, groups: ProducerGroups, transactions: TransactionCoordinator
) -> tuple[Webhooks, CheckSender]:
    controls = base.controls
    webhooks = Webhooks(post, groups, base.clock, base.metrics)
    client: ProducerClient = webhooks
    if controls is not None:
        client = SlowAnswers(webhooks, controls.faults, controls.clock, webhooks.timeout_ms)
    sender = CheckSender(transactions, client, base.clock, random=SystemRandom().random)
    return webhooks, sender


def _rates(base: Base) -> RateWatch:
    """Make the watch of rates, which are per second of the machine as well."""
    clock = base.clock if base.controls is None else SystemClock()
    store = base.store
    return RateWatch(
        base.metrics,
        lambda: store.status().written_end,
        clock,
        logs=base.settings.log_rates,
    )


def _disk(base: Base) -> DiskWatch:
    """Make the watch of the disk; the kernel does not count by a clock that tests move."""
    clock = base.clock if base.controls is None else SystemClock()
    return DiskWatch(KernelFiles(base.settings.store_dir).read, base.store, clock)


def _reports(base: Base) -> AuditReports:
    return AuditReports(
        AuditReportRows(base.database),
        base.clock,
        base.settings.audit,
        program=base.settings.audit.program or (sys.executable, "-P", "-m", "escrowmq"),
        data_dir=base.settings.data_dir.resolve(),
        has_spark=bool(base.settings.audit.program) or _is_installed("pyspark", "pyarrow"),
        has_plots=_is_installed("matplotlib"),
    )


def _is_installed(*packages: str) -> bool:
    return all(find_spec(package) is not None for package in packages)


def _long_polls(base: Base) -> LongPolls:
    most = base.settings.http.waiting_limit
    return LongPolls(base.clock, most=most, on_changed=base.metrics.long_polls.set)


def _durability(settings: Settings) -> Durability:
    """The durability of an append that asks for none."""
    if settings.local.flush is not FlushPolicy.BEFORE_ACK:
        return Durability.BUFFERED
    return safe_on(settings.replica.copies).durability
