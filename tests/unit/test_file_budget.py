"""How a limit of open files is divided: the store's need first, connections get what is left, or
the start is refused.
"""

import pytest

from app.life.file_budget import fit, plan
from app.replicas.listener import MOST_STRANGERS
from app.replicas.options import ReplicaOptions
from app.settings import ConfigurationError, HttpOptions, Settings
from storage.local.options import LocalStoreOptions


def settings(*, local: LocalStoreOptions | None = None, **http: int) -> Settings:
    return Settings(http=HttpOptions(**http), local=local or LocalStoreOptions())


@pytest.mark.parametrize(
    ("limit", "connections", "waiting", "queue_files", "checks"),
    [
        (1_024, 339, 297, 256, 64),
        (4_096, 2_867, 2_509, 512, 256),
        (65_536, 4_096, 3_584, 512, 256),
        (1 << 20, 4_096, 3_584, 512, 256),
    ],
)
def test_connections_get_what_the_store_leaves_and_a_part_of_them_is_never_parked(
    limit, connections, waiting, queue_files, checks
):
    fitted = fit(settings(), limit)

    assert fitted.http.max_connections == connections
    assert fitted.http.max_waiting == waiting < connections
    assert fitted.local.max_open_queue_files == queue_files
    assert fitted.webhook.max_connections == checks
    assert plan(fitted, limit).needed + connections <= limit


@pytest.mark.parametrize(
    ("limit", "given", "words"),
    [
        (256, {}, ["256 files", "queue files 64", "connections 64", "LimitNOFILE="]),
        (
            1_024,
            {"max_connections": 4_096},
            ["1024 files", "connections 4096", "ESCROWMQ_HTTP__MAX_CONNECTIONS"],
        ),
        (65_536, {"max_waiting": 10_000}, ["ESCROWMQ_HTTP__MAX_WAITING is 10000", "4096"]),
        (65_536, {"max_waiting": 10, "max_connections": 10}, ["ESCROWMQ_HTTP__MAX_WAITING is 10"]),
        (1_024, {"local": LocalStoreOptions(max_open_queue_files=2_000)}, ["queue files 2000"]),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_figures(limit, given, words):
    with pytest.raises(ConfigurationError) as refused:
        fit(settings(**given), limit)

    assert all(word in str(refused.value) for word in words), refused.value


def test_what_is_given_is_taken_where_it_fits():
    fitted = fit(settings(max_connections=10_000, max_waiting=9_999), 65_536)

    assert (fitted.http.max_connections, fitted.http.max_waiting) == (10_000, 9_999)


def test_a_service_of_replicas_keeps_files_for_all_connections_that_their_port_can_have():
    served = Settings(replica=ReplicaOptions(ha_host="127.0.0.1", max_replicas=4))

    assert plan(served, 4_096).needs["replicas"] == MOST_STRANGERS + 8
    assert plan(settings(), 4_096).needs["replicas"] == 0


def test_small_segments_do_not_open_thousands_of_files_ahead_of_the_writer():
    small = LocalStoreOptions(segment_bytes=16_384)

    assert plan(settings(local=small), 4_096).needs["segments"] < 100
