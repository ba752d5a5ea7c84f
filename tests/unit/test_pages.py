"""How many items a page has."""

import pytest

from app.encoding.pages import PAGE_BYTES, fitting


@pytest.mark.parametrize(
    ("sizes", "page_size", "count"),
    [
        ([], 10, 0),
        ([1, 1, 1], 10, 3),
        ([1, 1, 1], 2, 2),
        ([PAGE_BYTES + 1, 1], 10, 1),
        ([PAGE_BYTES, 1], 10, 1),
        ([PAGE_BYTES - 1, 1], 10, 2),
        ([0, PAGE_BYTES + 1], 10, 1),
        ([PAGE_BYTES + 1], 10, 1),
    ],
)
def test_a_page_ends_where_its_items_exceed_the_limit_of_bytes_and_has_one_at_least(
    sizes, page_size, count
):
    assert fitting(sizes, page_size, int) == count
