"""Up to where enough disks have the log."""

from storage.local.append.copies import Copies
from storage.message import safe_on


def test_alone_what_the_own_disk_has_is_safe():
    copies = Copies(100)

    copies.note_own(250)

    assert copies.safe_end == 250


def test_with_two_needed_it_is_safe_as_far_as_the_own_disk_and_the_best_other_one_have_it():
    copies = Copies(100, needed=2, safe_end=100)

    copies.note_own(500)
    assert copies.safe_end == 100
    copies.note_other("b", 300)
    assert copies.safe_end == 300
    copies.note_other("c", 400)
    assert copies.safe_end == 400
    copies.note_other("b", 900)
    assert copies.safe_end == 500


def test_with_three_needed_the_second_best_of_the_others_counts():
    copies = Copies(0, needed=3)

    copies.note_own(500)
    copies.note_other("b", 400)
    assert copies.safe_end == 0
    copies.note_other("c", 200)

    assert copies.safe_end == 200


def test_an_acknowledgement_that_arrives_late_takes_nothing_back():
    copies = Copies(0, needed=2)
    copies.note_own(500)
    copies.note_other("b", 400)

    copies.note_other("b", 300)
    copies.note_own(450)

    assert copies.safe_end == 400


def test_a_node_that_is_gone_does_not_count_for_what_comes_and_what_was_safe_stays_so():
    copies = Copies(0, needed=2)
    copies.note_own(500)
    copies.note_other("b", 400)

    copies.forget("b")
    copies.note_own(900)
    assert copies.safe_end == 400
    copies.note_other("c", 600)

    assert copies.safe_end == 600


def test_it_is_short_while_fewer_disks_are_there_than_are_needed():
    copies = Copies(0, needed=3)

    assert copies.is_short
    copies.note_other("b", 0)
    assert copies.is_short
    copies.note_other("c", 0)
    assert not copies.is_short
    copies.forget("b")
    assert copies.is_short


def test_alone_it_is_never_short():
    copies = Copies(0)

    copies.note_other("b", 10)
    copies.forget("b")

    assert not copies.is_short


def test_what_a_primary_has_found_is_safe_together_with_the_first_unit_of_its_epoch():
    copies = Copies(900, needed=2, safe_end=300)
    copies.keep_together(1_000)
    copies.note_own(1_000)

    copies.note_other("b", 999)
    assert copies.safe_end == 300
    copies.note_other("b", 1_000)
    assert copies.safe_end == 1_000
    copies.note_own(1_100)
    copies.note_other("b", 1_050)
    assert copies.safe_end == 1_050


def test_one_that_goes_on_alone_calls_safe_what_its_own_disk_has():
    copies = Copies(0, needed=2)
    copies.note_own(500)

    copies.go_alone()

    assert copies.safe_end == 500
    assert not copies.is_short
    copies.note_own(600)
    assert copies.safe_with(700) == 700
    assert copies.sureness == safe_on(1)
    assert not copies.is_together


def test_one_that_was_alone_calls_nothing_more_safe_before_others_have_all_that_was_written():
    copies = Copies(0, needed=2)
    copies.go_alone()
    copies.note_own(500)

    copies.end_alone(700)

    assert copies.is_short
    assert copies.safe_end == 500
    copies.note_own(800)
    copies.note_other("b", 699)
    assert not copies.is_short
    assert copies.safe_end == 500
    assert not copies.is_together
    assert copies.sureness == safe_on(1)
    copies.note_other("b", 750)
    assert copies.safe_end == 750
    assert copies.is_together
    assert copies.sureness == safe_on(2)


def test_one_that_was_alone_waits_for_the_first_unit_of_its_epoch_too():
    copies = Copies(900, needed=2, safe_end=300)
    copies.keep_together(1_000)
    copies.go_alone()

    copies.end_alone(900)
    copies.note_own(1_000)
    copies.note_other("b", 950)

    assert not copies.is_together
    copies.note_other("b", 1_000)
    assert copies.is_together
