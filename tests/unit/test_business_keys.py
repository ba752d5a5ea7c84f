"""The transactions of a business key, in the order of their begins."""

from txn.business_keys import BusinessKeys

SEQUENCES = {"a": 3, "b": 7, "c": 5}


def test_a_key_of_one_and_of_several_transactions_is_found_in_the_order_of_begins():
    keys = BusinessKeys(SEQUENCES.__getitem__)
    keys.add("one", "a", 3)
    for name in "abc":  # the last one was begun before the one in front of it
        keys.add("several", name, SEQUENCES[name])

    assert [list(keys.after("one", behind)) for behind in (-1, 2, 3)] == [["a"], ["a"], []]
    assert [list(keys.after("several", behind)) for behind in (-1, 3, 5, 7)] == [
        ["a", "c", "b"],
        ["c", "b"],
        ["b"],
        [],
    ]
    assert list(keys.after("none", -1)) == []


def test_a_key_whose_transactions_were_all_discarded_takes_nothing():
    keys = BusinessKeys(SEQUENCES.__getitem__)
    keys.add("one", "a", 3)
    for name in "abc":
        keys.add("several", name, SEQUENCES[name])

    keys.discard("one", 3)
    keys.discard("several", 7)
    assert (len(keys), list(keys.after("several", -1))) == (1, ["a", "c"])
    keys.discard("several", 3)
    keys.discard("several", 5)

    assert len(keys) == 0
    keys.add("several", "b", 7)
    assert list(keys.after("several", -1)) == ["b"]
