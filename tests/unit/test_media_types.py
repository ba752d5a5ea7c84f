"""Which media type a client gets of those that are offered: RFC 9110, 12.5.1."""

import pytest

from app.http.exchange import JSON, preferred
from app.messages.frames import MEDIA_TYPE

OFFERED = (JSON, MEDIA_TYPE)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (MEDIA_TYPE, MEDIA_TYPE),
        (MEDIA_TYPE.upper(), MEDIA_TYPE),
        (f"{MEDIA_TYPE}, application/json;q=0.9", MEDIA_TYPE),
        (f"{MEDIA_TYPE};q=0.9, application/json", JSON),
        (f"{MEDIA_TYPE} ; q=0.3 , application/json; q=0.2", MEDIA_TYPE),
        (f"{MEDIA_TYPE}, application/json", JSON),
        (f"{MEDIA_TYPE}, */*;q=0.1", MEDIA_TYPE),
        (f"application/json;q=0.5, application/*;q=0.4, {MEDIA_TYPE};q=0.6", MEDIA_TYPE),
        (f"application/*, {MEDIA_TYPE};q=0.5", JSON),
        ("application/*, application/json;q=0.5", MEDIA_TYPE),
        ("*/*, application/json;q=0", MEDIA_TYPE),
        (f"*/*;q=1.0, {MEDIA_TYPE};q=0", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        ("text/html", JSON),
        ("", JSON),
        (f"{MEDIA_TYPE};q=0", JSON),
        (f"{MEDIA_TYPE};q=2", JSON),
        (f"{MEDIA_TYPE};q=", JSON),
        (f"{MEDIA_TYPE};version=2", JSON),
        (",;q=1,;", JSON),
    ],
)
def test_the_type_that_the_client_prefers_is_sent_and_json_where_it_prefers_none(accept, expected):
    assert preferred(accept, OFFERED) == expected
