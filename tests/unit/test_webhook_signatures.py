"""Standard Webhooks signatures: the published vectors, every changed byte, time, and secrets that
are being replaced.
"""

import base64

import pytest

from escrowmq_client.webhooks import (
    ID,
    SIGNATURE,
    TIMESTAMP,
    InvalidSignature,
    new_secret,
    sign,
    verify,
)

# Source: the vectors of the Standard Webhooks reference libraries.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
WEBHOOK_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SECONDS = 1_614_265_330
BODY = b'{"test": 2432232314}'
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

HEADERS = {ID: WEBHOOK_ID, TIMESTAMP: str(SECONDS), SIGNATURE: SIGNED}


def is_taken(
    headers: dict[str, str], body: bytes = BODY, *, secrets=(SECRET,), now: float = SECONDS
) -> bool:
    try:
        return verify(secrets, headers, body, now=now) == headers[ID]
    except InvalidSignature:
        return False


def test_the_published_vector_is_signed_and_verified():
    assert sign([SECRET], webhook_id=WEBHOOK_ID, timestamp=SECONDS, body=BODY) == HEADERS
    assert verify([SECRET], HEADERS, BODY, now=SECONDS) == WEBHOOK_ID


def test_a_secret_without_its_prefix_is_the_same_secret():
    assert is_taken(HEADERS, secrets=[SECRET.removeprefix("whsec_")])


def test_the_names_of_headers_have_no_case():
    assert (
        verify(
            [SECRET], {name.upper(): value for name, value in HEADERS.items()}, BODY, now=SECONDS
        )
        == WEBHOOK_ID
    )


@pytest.mark.parametrize("at", range(len(BODY)))
def test_a_changed_byte_of_the_body_is_refused(at):
    changed = bytearray(BODY)
    changed[at] ^= 1

    assert not is_taken(HEADERS, bytes(changed))


@pytest.mark.parametrize("header", [ID, TIMESTAMP, SIGNATURE])
def test_a_changed_byte_of_a_header_is_refused(header):
    for at in range(len(HEADERS[header])):
        value = HEADERS[header]
        changed = value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
        # The last digits of the timestamp leave it within the tolerance: it is the signature that
        # must notice.
        assert not is_taken(HEADERS | {header: changed}), changed


@pytest.mark.parametrize("body", [BODY + b" ", BODY[:-1], b"", b" " + BODY])
def test_a_body_that_is_longer_or_shorter_is_refused(body):
    assert not is_taken(HEADERS, body)


@pytest.mark.parametrize("header", [ID, TIMESTAMP, SIGNATURE])
def test_a_missing_header_is_refused(header):
    with pytest.raises(InvalidSignature, match=header):
        verify(
            [SECRET],
            {name: value for name, value in HEADERS.items() if name != header},
            BODY,
            now=SECONDS,
        )


@pytest.mark.parametrize(
    "timestamp", ["", "now", "1614265330.5", "-1", "+1614265330", "1" * 400, "١٦١٤٢٦٥٣٣٠"]
)
def test_a_timestamp_that_is_none_is_refused(timestamp):
    assert not is_taken(HEADERS | {TIMESTAMP: timestamp})


@pytest.mark.parametrize(
    ("now", "taken"), [(-300, True), (300, True), (-301, False), (301, False), (300.5, False)]
)
def test_five_minutes_of_difference_are_taken_and_no_more(now, taken):
    assert is_taken(HEADERS, now=SECONDS + now) is taken


def test_while_a_secret_is_replaced_either_of_the_two_verifies():
    old, new = new_secret(), new_secret()
    headers = sign([new, old], webhook_id="chk_1_a", timestamp=SECONDS, body=BODY)

    assert len(headers[SIGNATURE].split(" ")) == 2
    assert is_taken(headers, secrets=[old])
    assert is_taken(headers, secrets=[new])
    assert not is_taken(headers, secrets=[new_secret()])
    # The receiver may know both while the sender signs with one.
    assert is_taken(
        sign([old], webhook_id="chk_1_a", timestamp=SECONDS, body=BODY), secrets=[new, old]
    )


def test_signatures_of_other_versions_are_passed_over():
    assert is_taken(HEADERS | {SIGNATURE: f"v1a,xxxx v2,{SIGNED[3:]} {SIGNED}"})
    assert not is_taken(
        HEADERS | {SIGNATURE: f"v1a,{SIGNED[3:]} v2,{SIGNED[3:]} {SIGNED[3:]} v1 v1,"}
    )
    assert not is_taken(HEADERS | {SIGNATURE: "v1,ä"})


def test_a_new_secret_is_32_bytes_and_never_the_same():
    one, other = new_secret(), new_secret()

    assert one != other
    assert len(base64.b64decode(one.removeprefix("whsec_"))) == 32


@pytest.mark.parametrize(
    "secret",
    ["", "whsec_", "whsec_ä", "whsec_" + base64.b64encode(b"x" * 23).decode(), "whsec_%%%%"],
)
def test_a_secret_that_is_none_is_our_own_mistake_and_is_not_repeated_in_the_error(secret):
    with pytest.raises(ValueError, match="24 to 64 bytes") as caught:
        verify([secret], HEADERS, BODY, now=SECONDS)

    assert secret[6:] == "" or secret[6:] not in str(caught.value)
