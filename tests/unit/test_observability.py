"""What the service writes about itself."""

import json
import subprocess
import sys

FAILING = """
import structlog
from app.observability.logs import configure_logging
configure_logging(level="info", readable={readable})
def handle(payload):
    raise ValueError("no such colour")
try:
    handle("a customer's secret")
except ValueError:
    structlog.get_logger().exception("request_failed")
"""


def logged(*, readable: bool) -> str:
    program = FAILING.format(readable=readable)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stderr


def test_a_traceback_in_the_log_says_where_and_shows_no_value_of_any_variable():
    machine, person = logged(readable=False), logged(readable=True)

    (failure,) = json.loads(machine.splitlines()[0])["exception"]
    assert failure["exc_value"] == "no such colour"
    assert [frame["name"] for frame in failure["frames"]] == ["<module>", "handle"]
    for log in (machine, person):
        assert "no such colour" in log
        assert "customer" not in log
