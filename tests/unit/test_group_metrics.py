"""Scrapes of the metrics of consumer groups: many at the same time, and beside changes."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from app.observability.group_metrics import GroupMetrics
from app.observability.metrics import Metrics
from app.registry.consumer_groups import ConsumerGroups
from delivery.group_figures import GroupFigures
from delivery.groups import GroupRules
from tests.support.delivery import rules, with_house


class Written:
    """Metrics of groups that count how often they are written, and wait for `may_end`."""

    def __init__(self) -> None:
        self.count = 0
        self.may_end = asyncio.Event()

    async def text(self) -> str:
        self.count += 1
        await self.may_end.wait()
        return f"written {self.count}\n"


async def test_scrapes_at_the_same_time_have_one_result_and_a_later_one_its_own():
    written, metrics = Written(), Metrics()
    metrics.watch_groups(written.text)

    scrapes = [asyncio.create_task(metrics.text()) for _ in range(50)]
    await asyncio.sleep(0)
    scrapes.pop(0).cancel()  # the one that has begun it
    await asyncio.sleep(0)
    written.may_end.set()
    texts = await asyncio.gather(*scrapes)

    assert all(text.endswith(b"written 1\n") for text in texts)
    assert (await metrics.text()).endswith(b"written 2\n")


async def test_a_scrape_that_fails_does_not_fail_the_next_one():
    written, metrics = Written(), Metrics()
    written.may_end.set()

    async def fail() -> str:
        raise OSError("the store is closed")

    metrics.watch_groups(fail)
    results = await asyncio.gather(metrics.text(), metrics.text(), return_exceptions=True)
    assert [type(result) for result in results] == [OSError, OSError]

    metrics.watch_groups(written.text)
    assert (await metrics.text()).endswith(b"written 1\n")


@with_house()
async def test_a_group_that_is_deleted_during_a_scrape_is_not_counted_as_one_without_metrics(
    house, monkeypatch
):
    names = ["first", "second"]

    class Groups:
        def __len__(self) -> int:
            return len(names)

        def created_first(self, count: int) -> list[Any]:
            return [SimpleNamespace(name=name, rules=rules()) for name in names[:count]]

    figures = house.delivery.figures

    async def read(groups: Iterable[tuple[str, GroupRules]]) -> list[GroupFigures]:
        await house.delivery.delete("second")
        names.remove("second")
        return await figures(groups)

    monkeypatch.setattr(house.delivery, "figures", read)
    written = GroupMetrics(
        cast("ConsumerGroups", Groups()), house.delivery, house.world.clock, most_groups=2
    )

    assert "escrowmq_groups_without_metrics 0\n" in await written.text()
