"""Where the files of an audit lie: a path or a URI, of which nobody is shown the secrets."""

from datetime import UTC, datetime

import pytest

from audit.uris import below, without_secrets
from cli.audit_common import Exit, in_short, run_part


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/a", "s3://***@bucket/a"),
        ("s3://key:se/cr/et@bucket/a", "s3://***@bucket/a"),
        ("s3://key:secret@bucket/a@b?region=x, /data/a@b", "s3://***@bucket/a@b?region=x, /data/a@b"),
        ("Cannot parse 's3://key:a+/b==@bucket'", "Cannot parse 's3://***@bucket'"),
        ("hdfs://user@host:8020/a", "hdfs://***@host:8020/a"),
        ("hdfs://host:8020/a@b s3://bucket/a@b", "hdfs://host:8020/a@b s3://bucket/a@b"),
    ],
)
def test_who_has_the_right_to_a_uri_is_not_shown(text, shown):
    assert without_secrets(text) == shown
    assert in_short(ValueError(text)) == f"ValueError: {shown}"
    assert run_part("rpt_1", [text], None, datetime.now(UTC), Exit.CLEAN)["log"] == shown


@pytest.mark.parametrize(
    ("uri", "inside"),
    [
        ("rows", "rows/run"),
        ("/data/what?/", "/data/what?/run"),
        ("s3://bucket/rows/", "s3://bucket/rows/run"),
        ("s3://bucket/rows?region=x&scheme=http", "s3://bucket/rows/run?region=x&scheme=http"),
    ],
)
def test_what_lies_in_a_folder_is_named_before_what_else_a_uri_says(uri, inside):
    assert below(uri, "run") == inside
