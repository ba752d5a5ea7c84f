"""The files in `config/` of a broker: read as a broker reads them, and written as it expects."""

import json
import lzma
import tarfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.clock import SystemClock
from storage.errors import UnreadableConfig
from storage.files import durable
from storage.files.simulated import PowerCut, SimulatedDisk
from storage.files.vfs import OsVfs, Vfs
from storage.formats import (
    config_json,
    consumer_filters,
    consumer_offsets,
    delay_progress,
    group_configs,
    topic_configs,
)
from storage.formats.config_json import DataVersion
from storage.formats.consumer_filters import (
    BloomFilterData,
    ConsumerFilters,
    FilterData,
    TopicFilters,
)
from storage.formats.consumer_offsets import GroupQueue
from storage.formats.delay_levels import DELAYS_MS
from storage.formats.group_configs import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    GroupConfigs,
    RetryPolicy,
    Subscribed,
)
from storage.formats.topic_configs import TopicConfig, TopicConfigs, TopicKind
from storage.local.broker import config_files
from storage.local.broker.config_files import ConfigFiles
from storage.local.broker.delay_files import DelayFiles
from storage.local.data_directory import DataDirectory

GOLDEN = Path(__file__).parents[1] / "golden" / "rocketmq-5.3.3"
ROOT = PurePosixPath("/data/store")

names = st.text(st.characters(codec="utf-8", exclude_characters="@"), min_size=1, max_size=20)
ints = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
versions = st.builds(DataVersion, counter=longs, state_version=longs, timestamp=longs)


def golden(store: str, name: str) -> bytes:
    with lzma.open(GOLDEN / f"{store}.tar.xz") as raw, tarfile.open(fileobj=raw) as archive:
        file = archive.extractfile(f"store/config/{name}")
        assert file is not None
        return file.read()


# --------------------------------------------------------------------------------------------------
# the files of a broker


@pytest.mark.parametrize("store", ["public-1", "public-2"])
@pytest.mark.parametrize(
    ("name", "decode", "encode"),
    [
        (topic_configs.FILE, topic_configs.decode, topic_configs.encode),
        (group_configs.FILE, group_configs.decode, group_configs.encode),
    ],
)
def test_a_brokers_file_is_written_with_the_same_content_and_who_wrote_it(
    store, name, decode, encode
):
    raw = golden(store, name)

    content = decode(raw)

    assert not content.is_ours
    assert json.loads(encode(content)) == json.loads(raw) | {"writtenBy": "EscrowMQ"}
    assert decode(encode(content)).is_ours


@pytest.mark.parametrize("store", ["public-1", "public-2"])
def test_a_brokers_offsets_are_written_as_a_broker_writes_them(store):
    raw = golden(store, consumer_offsets.FILE)
    offsets = consumer_offsets.read(raw)

    written = consumer_offsets.encode(
        consumer_offsets.tables_of(offsets.by_queue()), offsets.data_version
    )

    assert not offsets.is_ours
    assert consumer_offsets.read(written).is_ours
    assert consumer_offsets.read(written).data_version == offsets.data_version
    assert _offset_lines(written) == _offset_lines(raw)


def _offset_lines(raw: bytes) -> list[str]:
    """The lines of the table of offsets, in any order, as they are."""
    table = raw.decode().partition('"offsetTable":{')[2].partition("\n\t}")[0]
    return sorted(line.strip().removesuffix("\n\t\t}") for line in table.split("\n\t\t},"))


@pytest.mark.parametrize("store", ["public-1", "public-2"])
def test_a_brokers_empty_table_of_filters_is_read(store):
    assert consumer_filters.decode(golden(store, consumer_filters.FILE)) == ConsumerFilters()


def test_a_filter_of_a_broker_is_read_and_written_with_its_places():
    raw = b"""{"filterDataByTopic":{"orders":{"groupFilterData":{"billing":{
        "bloomFilterData":{"bitNum":112,"bitPos":[3,9,70]},"bornTime":5,"clientVersion":7,
        "consumerGroup":"billing","dead":true,"deadTime":8,"expression":"a in (1,2)",
        "expressionType":"SQL92","topic":"orders"}},"topic":"orders"}}}"""

    found = consumer_filters.decode(raw)

    assert found.filter_data_by_topic["orders"].group_filter_data["billing"] == FilterData(
        consumer_group="billing", topic="orders", expression="a in (1,2)",
        expression_type="SQL92", born_time=5, dead_time=8, client_version=7,
        bloom_filter_data=BloomFilterData(bit_num=112, bit_pos=(3, 9, 70)),
    )  # fmt: skip
    assert consumer_filters.decode(consumer_filters.encode(found)).filter_data_by_topic == (
        found.filter_data_by_topic
    )


def test_digits_inside_a_text_stay_as_they_are():
    text = '{"offsetTable":{},"attributes":{"a":"{1:2,3:4}","b":"\\"{5:"},"writtenBy":"x,6:7"}'

    assert consumer_offsets.read(text.encode()).written_by == "x,6:7"


def test_members_that_are_not_known_are_left_out():
    raw = b'{"topicConfigTable":{"a":{"topicName":"a","colour":[{}]}},"more":{"1":2}}'

    content = topic_configs.decode(raw)

    assert content.topic_config_table == {"a": TopicConfig(topic_name="a")}
    assert b"colour" not in topic_configs.encode(content)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b"{}", "topicConfigTable"),
        (b'{"topicConfigTable":{"a":{"topicName":"a","perm":"much"}}}', "perm"),
        (b'{"topicConfigTable":{"a":{"topicName":"a","perm":2147483648}}}', "perm"),
        (b'{"topicConfigTable":{"a":{}}}', "topicName"),
        (b'{"x":' + b"[" * 100_000, "recursion"),
        (b'{"topicConfigTable":{"a":{"topicName":"a"}', "truncated"),
    ],
    ids=range(8),
)
def test_what_is_wrong_in_a_file_is_named(raw, reason):
    with pytest.raises(ValueError, match=reason):
        topic_configs.decode(raw)


def test_a_file_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(config_json, "MOST_BYTES", 100)

    with pytest.raises(ValueError, match="at most 100"):
        consumer_offsets.read(b'{"offsetTable":{}}' + b" " * 100)


# --------------------------------------------------------------------------------------------------
# values


@given(
    st.dictionaries(
        names,
        st.builds(
            TopicConfig, topic_name=names, read_queue_nums=ints, write_queue_nums=ints, perm=ints,
            topic_filter_type=names, topic_sys_flag=ints, order=st.booleans(),
            attributes=st.dictionaries(names, names, max_size=3),
        ),
        max_size=4,
    ),
    versions,
)  # fmt: skip
def test_topics_are_read_as_they_were_written(table, version):
    content = TopicConfigs(topic_config_table=table, data_version=version)

    assert _same(topic_configs.decode(topic_configs.encode(content)), content)


_policies = st.builds(
    RetryPolicy,
    type=st.sampled_from(["CUSTOMIZED", "EXPONENTIAL", "other"]),
    customized_retry_policy=st.none()
    | st.builds(CustomizedRetry, next=st.lists(longs, max_size=3).map(tuple)),
    exponential_retry_policy=st.none()
    | st.builds(ExponentialRetry, initial=longs, max=longs, multiplier=longs),
)


@given(
    st.dictionaries(
        names,
        st.builds(
            GroupConfig, group_name=names, consume_enable=st.booleans(),
            consume_message_orderly=st.booleans(), retry_queue_nums=ints, retry_max_times=ints,
            group_retry_policy=_policies, consume_timeout_minute=ints,
            subscription_data_set=st.lists(
                st.builds(Subscribed, topic=names, expression=names), max_size=2
            ).map(tuple),
        ),
        max_size=4,
    ),
    st.dictionaries(names, st.dictionaries(names, ints, max_size=2), max_size=2),
    versions,
)  # fmt: skip
def test_groups_are_read_as_they_were_written(table, forbidden, version):
    content = GroupConfigs(
        subscription_group_table=table, forbidden_table=forbidden, data_version=version
    )

    assert _same(group_configs.decode(group_configs.encode(content)), content)


@given(
    st.dictionaries(
        st.builds(GroupQueue, names, names, st.integers(0, (1 << 31) - 1)), longs, max_size=8
    ),
    versions,
)
def test_offsets_are_read_as_they_were_written(offsets, version):
    read = consumer_offsets.read(
        consumer_offsets.encode(consumer_offsets.tables_of(offsets), version)
    )

    assert (read.by_queue(), read.data_version) == (offsets, version)


@given(
    st.dictionaries(
        names,
        st.builds(
            TopicFilters,
            topic=names,
            group_filter_data=st.dictionaries(
                names,
                st.builds(
                    FilterData, consumer_group=names, topic=names, expression=names,
                    expression_type=names, born_time=longs, dead_time=longs,
                ),
                max_size=2,
            ),
        ),
        max_size=3,
    )
)  # fmt: skip
def test_filters_are_read_as_they_were_written(table):
    content = ConsumerFilters(filter_data_by_topic=table)

    assert _same(consumer_filters.decode(consumer_filters.encode(content)), content)


def _same(read: Any, written: Any) -> bool:
    return config_json.encode(read) == config_json.encode(written) and read.is_ours


# --------------------------------------------------------------------------------------------------
# names, retries


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("orders", TopicKind.OF_CLIENTS),
        ("orders@eu", TopicKind.UNUSABLE),
        ("a|b", TopicKind.UNUSABLE),
        ("%orders", TopicKind.UNUSABLE),
        ("n" * 128, TopicKind.UNUSABLE),
        ("%RETRY%billing", TopicKind.RETRY),
        ("%RETRY%billing_orders", TopicKind.RETRY),
        ("%DLQ%billing", TopicKind.DEAD_LETTER),
        ("%LMQ%device-1", TopicKind.LITE),
        ("rmq_sys_REVIVE_LOG_eu", TopicKind.REVIVE),
        ("eu_REPLY_TOPIC", TopicKind.REPLY),
        ("DefaultCluster_REPLY_TOPIC", TopicKind.REPLY),
        ("shop_REPLY_TOPIC", TopicKind.OF_CLIENTS),
        ("eu", TopicKind.OF_THE_BROKER),
        ("eu-broker", TopicKind.OF_THE_BROKER),
        ("TBW102", TopicKind.OF_THE_BROKER),
        ("SELF_TEST_TOPIC", TopicKind.OF_THE_BROKER),
        ("RMQ_SYS_TRANS_HALF_TOPIC", TopicKind.OF_THE_BROKER),
        ("rmq_sys_escrowmq_leases", TopicKind.OF_THE_BROKER),
    ],
)
def test_a_topic_is_told_by_its_name(topic, kind):
    table = {"rmq_sys_REVIVE_LOG_eu": 0, "rmq_sys_SYNC_BROKER_MEMBER_eu-broker": 0, topic: 0}

    assert topic_configs.kind_of(topic, topic_configs.broker_names(table)) is kind


def test_retries_wait_by_the_policy_of_the_group():
    customized = RetryPolicy(customized_retry_policy=CustomizedRetry(next=(1, 2, 30, 40)))
    exponential = RetryPolicy(
        type="EXPONENTIAL",
        exponential_retry_policy=ExponentialRetry(initial=10, max=70, multiplier=2),
    )

    assert RetryPolicy().backoff_ms(16) == DELAYS_MS[2:]
    assert customized.backoff_ms(16) == (30, 40)
    assert exponential.backoff_ms(5) == (10, 20, 40, 70, 70)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30).map(tuple))
def test_a_broker_waits_as_long_as_the_group_that_the_policy_is_of(backoff_ms):
    assert RetryPolicy.of_backoff(backoff_ms).backoff_ms(len(backoff_ms)) == backoff_ms


# --------------------------------------------------------------------------------------------------
# the files and their copies

_PATH = ROOT / "config" / "topics.json"
_ONE, _TWO = (
    topic_configs.encode(TopicConfigs(topic_config_table={name: TopicConfig(topic_name=name)}))
    for name in ("one", "two")
)


def _read(vfs: Vfs) -> list[str] | None:
    found = config_files.read(vfs, _PATH, topic_configs.decode)
    return None if found is None else list(found.topic_config_table)


@pytest.fixture
def directory() -> DataDirectory:
    return DataDirectory(SimulatedDisk(), ROOT)


def _write(directory: DataDirectory, path: PurePosixPath, data: bytes) -> None:
    file = directory.vfs.open(path, create=True)
    file.extend(0)
    file.write(0, data)
    file.close()


def test_a_text_that_never_ends_is_refused_after_one_look_at_each_byte():
    """Where each quote of it began another look to the end, this would take days."""
    raw = b'{"offsetTable":{"' + b'\\"' * 4_000_000

    with pytest.raises(ValueError, match="truncated"):
        consumer_offsets.read(raw)


@pytest.mark.parametrize("name", [consumer_offsets.FILE, delay_progress.FILE])
def test_no_more_of_a_huge_file_is_read_than_it_may_have(tmp_path, name):
    vfs = OsVfs()
    directory = DataDirectory(vfs, tmp_path)
    with (tmp_path / "config" / name).open("xb") as file:
        file.truncate(1 << 42)  # sparse; no machine has so much memory

    if name == delay_progress.FILE:
        assert DelayFiles(directory, SystemClock()).by_broker is None
    else:
        with pytest.raises(UnreadableConfig, match="at most"):
            ConfigFiles(directory).read(name, consumer_offsets.read)
    directory.close()


def test_there_is_nothing_to_read_of_a_store_that_no_broker_had(directory):
    assert _read(directory.vfs) is None


def test_the_content_before_the_last_change_is_the_copy(directory):
    ConfigFiles(directory).replace("topics.json", _ONE)
    ConfigFiles(directory).replace("topics.json", _TWO)

    assert _read(directory.vfs) == ["two"]
    directory.vfs.remove(_PATH)
    assert _read(directory.vfs) == ["one"]


@pytest.mark.parametrize("broken", [b"", _TWO[:-1], b"\0" * 100], ids=["empty", "cut", "zeros"])
def test_the_copy_counts_where_the_file_is_broken(directory, broken):
    ConfigFiles(directory).replace("topics.json", _ONE)
    ConfigFiles(directory).replace("topics.json", _TWO)
    _write(directory, _PATH, broken)

    assert _read(directory.vfs) == ["one"]


@pytest.mark.parametrize("passes", [True, False])
def test_the_copy_counts_only_once_the_disk_has_not_given_back_the_file_several_times(
    directory, passes
):
    disk = directory.vfs
    ConfigFiles(directory).replace("topics.json", _ONE)
    ConfigFiles(directory).replace("topics.json", _TWO)
    disk.fail_reads(_PATH, 0, 1)
    disk.on_pause = lambda: disk.heal_reads(_PATH) if passes else None

    found = ConfigFiles(directory).find("topics.json", topic_configs.decode)

    assert found.value is not None
    assert [*found.value.topic_config_table] == ["two" if passes else "one"]
    assert found.backup == (None if passes else config_json.Backup("unreadable", 0))


def test_a_broken_file_without_a_copy_is_an_error_that_names_it(directory):
    _write(directory, _PATH, b"{")

    with pytest.raises(UnreadableConfig, match=r"/data/store/config/topics\.json"):
        _read(directory.vfs)


def test_an_empty_file_without_a_copy_is_no_file(directory):
    _write(directory, _PATH, b"")

    assert _read(directory.vfs) is None


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_while_a_file_is_replaced_leaves_the_old_or_the_new_content(seed):
    randomness = Random(seed)
    disk = SimulatedDisk()
    directory = DataDirectory(disk, ROOT)
    ConfigFiles(directory).replace("topics.json", _ONE)

    disk.cut_after = disk.operations + randomness.randint(1, 20)
    with suppress(PowerCut):
        ConfigFiles(directory).replace("topics.json", _TWO)

    assert _read(disk.after_power_cut(randomness)) in (["one"], ["two"])


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_while_a_broken_file_is_replaced_leaves_its_copy_or_the_new_content(seed):
    randomness = Random(seed)
    disk = SimulatedDisk()
    directory = DataDirectory(disk, ROOT)
    ConfigFiles(directory).replace("topics.json", _ONE)
    ConfigFiles(directory).replace("topics.json", _TWO)
    durable.replace(disk, _PATH, _TWO[:-1], scratch=directory.making)

    disk.cut_after = disk.operations + randomness.randint(1, 20)
    with suppress(PowerCut):
        ConfigFiles(directory).replace("topics.json", _TWO)

    assert _read(disk.after_power_cut(randomness)) in (["one"], ["two"])


def test_a_file_is_ours_until_a_broker_writes_it(directory):
    files = ConfigFiles(directory)
    assert not files.is_ours("topics.json")

    files.replace("topics.json", _ONE)
    assert files.is_ours("topics.json")

    _write(directory, _PATH, golden("public-1", "topics.json"))
    assert not files.is_ours("topics.json")


@pytest.mark.parametrize(
    "encoded",
    [
        _ONE,
        group_configs.encode(GroupConfigs(subscription_group_table={})),
        consumer_offsets.encode(consumer_offsets.tables_of({}), DataVersion()),
        consumer_filters.encode(ConsumerFilters()),
    ],
    ids=["topics", "groups", "offsets", "filters"],
)
def test_each_file_of_ours_is_told_by_its_end(directory, encoded):
    _write(directory, _PATH, encoded)

    assert ConfigFiles(directory).is_ours("topics.json")
