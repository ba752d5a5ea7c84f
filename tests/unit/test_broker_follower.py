"""A copy of a broker's log: it has every byte and no other, wherever a run of it ends."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from app.http.duplex import until_one_ends
from app.rocketmq.broker_state import OtherLog
from app.rocketmq.follow import BrokerFollower, CannotFollow, Pace
from app.rocketmq.followed_log import NOTE, BadNote, CopyFailed, last_record, read_note
from app.rocketmq.remoting import BadAnswer, Refused
from tests.support import http
from tests.support.rocketmq_master import CONFIG, ScriptedMaster
from tests.support.server import reserved_port

SEGMENT_BYTES = 4_096
SOON = Pace(0.01, 0.01, 0.01)


ENDS = (2, 700, SEGMENT_BYTES, SEGMENT_BYTES + 1, 9_000)


def records(*sizes: int, seed: int = 0) -> bytes:
    """Bytes that have the form of records, as far as their lengths."""
    return b"".join(
        size.to_bytes(4, "big") + bytes((seed + number + n) % 251 for n in range(size - 4))
        for number, size in enumerate(sizes)
    )


LOG = records(*[512] * 20)  # two segments and a half


def follower_of(master: ScriptedMaster, folder: Path) -> BrokerFollower:
    folder.mkdir(exist_ok=True)
    return BrokerFollower(
        folder,
        "127.0.0.1",
        master.port,
        ha_port=None,
        note=lambda step, done, total: None,
        pace=SOON,
    )


async def take_over(master: ScriptedMaster, folder: Path) -> int:
    async with asyncio.timeout(30):
        return await follower_of(master, folder).run(settle_s=0.05)


async def until(holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(http.until, holds, "the copy, or the master, is so far")


async def follow_while(
    master: ScriptedMaster, folder: Path, act: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Follow without end, until this has been done. Raises what ended it before."""
    running = follower_of(master, folder).run(settle_s=None)
    await asyncio.wait_for(until_one_ends(running, act()), 60)


async def follow_up_to(master: ScriptedMaster, folder: Path, end: int) -> None:
    master.send_up_to(end)
    await follow_while(master, folder, lambda: until(lambda: end_of(folder) == end))


def end_of(folder: Path) -> int:
    note = read_note(folder)
    return 0 if note is None else note.end


def log_of(folder: Path) -> bytes:
    """From the first segment on, and what is behind the end is zeros."""
    segments = sorted((folder / "commitlog").iterdir())
    assert {path.stat().st_size for path in segments} <= {SEGMENT_BYTES}
    return b"".join(path.read_bytes() for path in segments)


async def test_a_log_that_begins_at_0_is_copied_from_its_first_byte(tmp_path):
    async with ScriptedMaster(LOG) as master:
        assert await take_over(master, tmp_path / "copy") == len(LOG)
    assert log_of(tmp_path / "copy") == LOG.ljust(3 * SEGMENT_BYTES, b"\0")
    assert master.reports[0] == 1, "0 would get the last segment alone"


async def test_a_log_whose_first_segments_have_expired_is_copied_from_where_it_begins(tmp_path):
    begin = 3 * SEGMENT_BYTES
    async with ScriptedMaster(LOG, begin=begin) as master:
        assert await take_over(master, tmp_path / "copy") == begin + len(LOG)
    names = sorted(path.name for path in (tmp_path / "copy/commitlog").iterdir())
    assert names[0] == f"{begin:020}"
    assert log_of(tmp_path / "copy")[: len(LOG)] == LOG


async def test_a_copy_is_taken_over_once_the_broker_rests_and_has_its_files_then(tmp_path):
    async with ScriptedMaster(LOG) as master:
        master.send_up_to(len(LOG) - 100)
        running = asyncio.ensure_future(take_over(master, tmp_path / "copy"))
        await until(lambda: end_of(tmp_path / "copy") == len(LOG) - 100)
        looks = master.asked.count(28)
        await until(lambda: master.asked.count(28) > looks + 20)
        assert not running.done(), "not all of the log is there"
        assert 21 not in master.asked
        master.send_up_to(1 << 60)
        assert await running == len(LOG)
    config = tmp_path / "copy/config"
    assert sorted(path.read_bytes() for path in config.iterdir()) == sorted(CONFIG.values())


async def test_a_broker_that_goes_on_while_its_files_are_fetched_does_not_rest(tmp_path):
    async with ScriptedMaster(LOG[:1_024]) as master:

        def grow_once(code: int) -> None:
            if code == 43 and master.asked.count(43) == 1:
                master.append(LOG[1_024:])

        master.on_ask = grow_once
        assert await take_over(master, tmp_path / "copy") == len(LOG)
        assert master.asked.count(43) == 2


async def test_a_run_goes_on_where_the_one_before_it_had_the_log_on_disk(tmp_path):
    folder = tmp_path / "copy"
    async with ScriptedMaster(LOG) as master:
        for most in ENDS:
            await follow_up_to(master, folder, most)
        master.send_up_to(1 << 60)
        await take_over(master, folder)
        assert log_of(folder)[: len(LOG)] == LOG
    assert {*ENDS} <= {*master.reports}


@pytest.mark.parametrize("end", [700, 1_000], ids=["at the same end", "behind it"])
async def test_what_a_killed_run_had_not_noted_is_gone(tmp_path, end):
    folder = tmp_path / "copy"
    async with ScriptedMaster(LOG) as master:
        await follow_up_to(master, folder, 700)
        first, second = (folder / f"commitlog/{at:020}" for at in (0, SEGMENT_BYTES))
        first.write_bytes(first.read_bytes()[:700].ljust(SEGMENT_BYTES, b"?"))
        second.write_bytes(b"?" * SEGMENT_BYTES)
        master.log = LOG[:end]
        master.send_up_to(1 << 60)
        assert await take_over(master, folder) == end
    assert log_of(folder) == LOG[:end].ljust(SEGMENT_BYTES, b"\0")


async def test_a_broker_that_was_lost_is_found_again(tmp_path):
    folder = tmp_path / "copy"
    async with ScriptedMaster(LOG[:2_000]) as master:

        async def act() -> None:
            await until(lambda: end_of(folder) == 2_000)
            master.drop_connections()
            master.append(LOG[2_000:])
            await until(lambda: end_of(folder) == len(LOG))

        await follow_while(master, folder, act)
    assert log_of(folder)[: len(LOG)] == LOG


async def test_a_broker_that_is_busy_is_asked_again_and_one_that_refuses_is_not(tmp_path):
    async with ScriptedMaster(LOG) as master:

        def be_free(code: int) -> None:
            if master.asked.count(43) == 3:
                master.refusals = {}

        master.refusals = {43: 2}
        master.on_ask = be_free
        assert await take_over(master, tmp_path / "copy") == len(LOG)
        master.on_ask = lambda code: None
        master.refusals = {43: 16}
        with pytest.raises(Refused, match="16"):
            await take_over(master, tmp_path / "copy")
        master.refusals = {33: 2}
        with pytest.raises(Refused, match="2"):  # not that it is another broker
            await take_over(master, tmp_path / "copy")


async def test_a_broker_without_its_port_for_slaves_is_an_error_at_first(tmp_path):
    with reserved_port() as port:
        async with ScriptedMaster(LOG) as master:
            master.settings = {"haListenPort": str(port.getsockname()[1])}
            with pytest.raises(OSError, match="Connect call failed"):
                await take_over(master, tmp_path / "copy")


async def test_an_empty_broker_is_followed_until_it_has_a_log(tmp_path):
    folder = tmp_path / "copy"
    async with ScriptedMaster() as master:

        async def act() -> None:
            await until(lambda: len(master.reports) > 2)
            master.append(LOG)
            await until(lambda: end_of(folder) == len(LOG))

        await follow_while(master, folder, act)
    assert log_of(folder)[: len(LOG)] == LOG


@pytest.mark.parametrize(
    ("log", "begin", "reason"),
    [
        (records(*[512] * 20, seed=1), 0, "is not the one that was copied"),
        (LOG[:1_000], 0, "is not the one that was copied"),
        (b"", 0, "is not the one that was copied"),
        (LOG, 4 * SEGMENT_BYTES, "begins at 16,384 by now"),
    ],
    ids=["another", "lost its end", "empty", "dropped"],
)
@pytest.mark.parametrize(
    "end",
    [SEGMENT_BYTES, SEGMENT_BYTES + 100, SEGMENT_BYTES + 2_000],
    ids=["border", "begun", "inside"],
)
async def test_a_log_that_does_not_continue_the_copy_is_refused(tmp_path, log, begin, reason, end):
    folder = tmp_path / "copy"
    async with ScriptedMaster(LOG) as master:
        await follow_up_to(master, folder, end)
    before = log_of(folder)
    async with ScriptedMaster(log, begin=begin) as other:
        with pytest.raises(CannotFollow, match=reason):
            await take_over(other, folder)
    assert log_of(folder) == before


async def test_a_log_that_lost_a_part_of_a_record_that_was_copied_is_refused(tmp_path):
    folder, end = tmp_path / "copy", SEGMENT_BYTES + 100
    async with ScriptedMaster(LOG) as master:
        await follow_up_to(master, folder, end)
        master.log = LOG[:SEGMENT_BYTES]
        with pytest.raises(CannotFollow, match="which ends at 4,096"):
            await take_over(master, folder)


async def test_a_broker_that_drops_what_the_copy_lacks_is_refused_while_it_is_followed(tmp_path):
    folder = tmp_path / "copy"
    async with ScriptedMaster(LOG) as master:
        master.send_up_to(700)

        async def act() -> None:
            await until(lambda: end_of(folder) == 700)
            master.log, master.begin = LOG[SEGMENT_BYTES:], SEGMENT_BYTES
            await asyncio.Event().wait()

        with pytest.raises(CannotFollow, match="has dropped its log up to 4,096"):
            await follow_while(master, folder, act)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"enableDLegerCommitLog": "true"}, "DLedger"),
        ({"enableControllerMode": "true"}, "controller mode"),
    ],
)
async def test_a_broker_whose_log_cannot_be_followed_is_refused(tmp_path, settings, reason):
    async with ScriptedMaster(LOG) as master:
        master.settings = settings
        with pytest.raises(OtherLog, match=reason):
            await take_over(master, tmp_path / "copy")


@pytest.mark.parametrize("settings", [{"mappedFileSizeCommitLog": "0"}, {"haListenPort": "none"}])
async def test_settings_that_cannot_be_are_an_error(tmp_path, settings):
    async with ScriptedMaster(LOG) as master:
        master.settings = settings
        with pytest.raises(BadAnswer):
            await take_over(master, tmp_path / "copy")


async def test_the_copy_of_another_broker_is_left_as_it_is(tmp_path):
    async with ScriptedMaster(LOG) as master:
        await take_over(master, tmp_path / "copy")
        master.settings = {"brokerName": "other"}
        with pytest.raises(CannotFollow, match="is the copy of cluster/broker"):
            await take_over(master, tmp_path / "copy")


@pytest.mark.parametrize("raw", [b"", b"{", b'{"end": -1}', b"\xff"])
async def test_a_note_that_cannot_be_read_is_an_error(tmp_path, raw):
    async with ScriptedMaster(LOG) as master:
        await take_over(master, tmp_path / "copy")
        (tmp_path / "copy" / NOTE).write_bytes(raw)
        with pytest.raises(BadNote):
            await take_over(master, tmp_path / "copy")


@pytest.mark.parametrize("at", [0, SEGMENT_BYTES])
async def test_a_copy_that_lost_a_segment_is_an_error(tmp_path, at):
    folder = tmp_path / "copy"
    async with ScriptedMaster(LOG) as master:
        await follow_up_to(master, folder, SEGMENT_BYTES + 700)
        (folder / f"commitlog/{at:020}").unlink()
        with pytest.raises(BadNote, match=f"{at:020} is missing"):
            await take_over(master, folder)
        assert not (folder / f"commitlog/{at:020}").exists()


async def test_a_disk_that_fails_ends_it_and_is_not_trusted_again(tmp_path):
    folder = tmp_path / "copy"
    async with ScriptedMaster(LOG) as master:
        master.send_up_to(700)

        async def act() -> None:
            await until(lambda: end_of(folder) == 700)
            (folder / f"commitlog/{SEGMENT_BYTES:020}").mkdir()  # where a segment is to be
            master.send_up_to(1 << 60)
            await asyncio.Event().wait()

        with pytest.raises(CopyFailed, match=f"{SEGMENT_BYTES:020}"):
            await follow_while(master, folder, act)
    assert end_of(folder) <= SEGMENT_BYTES


def test_the_last_record_is_the_last_whole_one():
    data = records(100, 50, 8)
    assert last_record(data, 1_000, 0) == (1_150, data[150:])
    assert last_record(data[:-1], 1_000, 0) == (1_100, data[100:150])
    assert last_record(data[:99], 1_000, 0) is None
    assert last_record(b"", 0, 0) is None
