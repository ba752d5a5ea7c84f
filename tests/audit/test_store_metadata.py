"""What a store says beside its log is read as the one that goes on with it would read it."""

from pathlib import Path

from audit.log import log_files, store_metadata
from audit.log.store_metadata import StoreMetadata
from storage.formats.consumer_offsets import GroupQueue
from tests.audit.test_outcomes import BROKERS, OURS, unpacked

WHOLE = b'{"offsetTable":{"a@g":{0:3}}}'


def said(**files: bytes) -> StoreMetadata:
    """By names without folder and ending; `_bak` at the end is of the file kept beside."""
    known = {
        "offsets": store_metadata.CONSUMERS,
        "offsets_bak": f"{store_metadata.CONSUMERS}.bak",
        "timers": store_metadata.TIMERS,
    }
    return store_metadata.read({known[name]: raw for name, raw in files.items()}.get)


def test_a_file_that_is_not_whole_is_made_good_by_the_one_kept_beside_it():
    for torn in (b"", WHOLE[:-1]):
        found = said(offsets=torn, offsets_bak=WHOLE)

        assert found.consumers == {GroupQueue("g", "a", 0): 3}
        assert found.unreadable == ()
    assert said(offsets_bak=WHOLE).consumers == {GroupQueue("g", "a", 0): 3}


def test_where_neither_is_whole_it_is_named_and_says_nothing():
    found = said(offsets=WHOLE[:-1], offsets_bak=b"", timers=b"short")

    assert found == StoreMetadata(unreadable=(store_metadata.CONSUMERS, store_metadata.TIMERS))


def test_what_is_not_there_is_not_missed():
    assert said() == StoreMetadata()


def test_a_brokers_store_says_where_its_groups_and_its_delays_stand_and_ours_how_far_it_is_on_disk(
    tmp_path,
):
    brokers, ours = (
        of_store(path, tmp_path / path.name)
        for path in (BROKERS / "public-1.tar.xz", OURS / "closed.tar.xz")
    )

    assert brokers.consumers is not None
    assert brokers.consumers[GroupQueue("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0)] == 176
    assert brokers.levels is not None
    assert (brokers.levels.offsets[1], brokers.timer_offset) == (15, 9)
    assert ours.fields is not None
    assert ours.fields.confirm_offset == 50_728
    assert ours == StoreMetadata(fields=ours.fields)


def of_store(archive: Path, to: Path) -> StoreMetadata:
    return log_files.find_folder(str(unpacked(archive, to))).metadata
