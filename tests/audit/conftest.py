"""One Spark session for all, since it takes seconds to start: tests that use it are of one xdist
group, as one worker has it.

Tests that run Spark in a process of their own belong to no group, so that no worker is idle at the
end.
"""

from collections.abc import Iterator

import pytest

from audit.spark.java import JavaNotFound
from audit.spark.session import session
from tests.fault.campaign_size import FULL

# Over short logs Spark compiles longer than what is compiled runs. The command's own tests, whose
# Spark runs in another process, and FAULTS=full compile as users' runs do.
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory) -> Iterator:
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    # What a long run gains by compiling more is lost in one of seconds.
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings = {
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        **({} if FULL else _INTERPRETED),
        "spark.driver.extraJavaOptions": java,
    }
    try:
        with session("local[2]", log=log, settings=settings) as spark:
            yield spark
    except JavaNotFound as missing:
        pytest.skip(str(missing))


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
