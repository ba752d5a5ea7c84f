"""Where a broker's groups stand, as its file says it."""

import pytest

from storage.formats.consumer_offsets import GroupQueue, decode

BY_A_BROKER = b"""{
	"dataVersion":{
		"counter":1,
		"stateVersion":0,
		"timestamp":1795254682051
	},
	"groupTopicMap":{
		"CID_RMQ_SYS_TRANS":["RMQ_SYS_TRANS_HALF_TOPIC","RMQ_SYS_TRANS_OP_HALF_TOPIC"]
	},
	"offsetTable":{
		"payments@g-worker":{0:32,1:25
		},
		"%RETRY%g-worker@g-worker":{0:0
		},
		"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:4000000000
		}
	}
}"""


def test_the_file_of_a_broker_is_read_with_its_bare_keys():
    assert decode(BY_A_BROKER) == {
        GroupQueue("g-worker", "payments", 0): 32,
        GroupQueue("g-worker", "payments", 1): 25,
        GroupQueue("g-worker", "%RETRY%g-worker", 0): 0,
        GroupQueue("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0): 4_000_000_000,
    }


def test_quoted_keys_numbers_below_zero_and_an_empty_table_are_read_too():
    assert decode(b'{"offsetTable":{"a@g":{"12": -1}}}') == {GroupQueue("g", "a", 12): -1}
    assert decode(b'{"offsetTable":{}}') == {}


@pytest.mark.parametrize(
    "raw", [b"", b"null", b"[]", b"\xff\x00", BY_A_BROKER[:-1], b'{"offsetTable":[1]}',
    b'{"offsetTable":{"a@g":{"x":1}}}',
            b'{"offsetTable":{"a@g":{"0":"much"}}}', b'{"dataVersion":{}}',
            b'{"offsetTable":{"a@g":{"0":1e999}}}',
            b'{"offsetTable":{"a@g":{"0":9223372036854775808}}}', b"[" * 100_000]
)  # fmt: skip
def test_what_is_no_such_file_says_nothing(raw):
    assert decode(raw) is None
