"""Which names a client may use, which are the house's, and how files are named."""

import pytest

from storage.formats import names

GOOD = ["orders", "a", "A-b_c.d", "_x", "-x", "0", "t" * 127]
BAD = [
    "",
    ".",
    "..",
    ".hidden",
    "a/b",
    "a\\b",
    "a b",
    "a%b",
    "größe",
    "名",
    "a\n",
    "a\0",
    "t" * 128,
    "a|b",
    "\u0661",
]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_may_be_used_by_a_client_and_stored(name):
    assert names.is_valid_name(name)
    assert names.is_stored_name(name)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_may_not_be_used(name):
    assert not names.is_valid_name(name)


@pytest.mark.parametrize("name", [name for name in BAD if name != "t" * 128])
def test_a_name_that_is_no_safe_folder_is_not_stored_alone_or_behind_a_prefix(name):
    for prefix in ("", "%RETRY%", "%DLQ%"):
        assert not names.is_stored_name(prefix + name)


def test_the_retry_and_dead_letter_topics_of_long_groups_may_be_stored():
    for prefix in ("", "%RETRY%", "%DLQ%"):
        assert names.is_stored_name(prefix + "g" * 255)
        assert not names.is_stored_name(prefix + "g" * 256)


def test_a_prefix_stands_once():
    assert not names.is_stored_name("%RETRY%%DLQ%group")
    assert not names.is_stored_name("group%RETRY%")


@pytest.mark.parametrize(
    "name",
    [
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "TBW102",
        "BenchmarkTest",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "rmq_sys_wheel_timer",
        "rmq_sys_escrowmq_checks",
        "%RETRY%group",
        "%DLQ%group",
        "CID_RMQ_SYS_TRANS",
        "TOOLS_CONSUMER",
    ],
)
def test_the_names_of_the_house_and_of_rocketmq_are_reserved_and_can_be_stored(name):
    assert names.is_reserved_name(name)
    assert names.is_stored_name(name)


@pytest.mark.parametrize(
    "name", ["orders", "tbw102", "RMQ_SYS_ORDERS", "my_rmq_sys_x", "CID_orders"]
)
def test_other_names_are_not_reserved(name):
    assert not names.is_reserved_name(name)


@pytest.mark.parametrize(
    ("offset", "name"),
    [
        (0, "00000000000000000000"),
        (1 << 30, "00000000001073741824"),
        ((1 << 63) - 1, "09223372036854775807"),
    ],
)
def test_a_file_is_named_after_the_address_of_its_first_byte(offset, name):
    assert names.file_name(offset) == name
    assert names.base_offset(name) == offset


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0",
        "0000000000000000000",
        "000000000000000000000",
        "0000000000000000000a",
        "-0000000000000000001",
        "\u0660" * 20,
    ],
)
def test_another_name_is_no_address(name):
    assert names.base_offset(name) is None
