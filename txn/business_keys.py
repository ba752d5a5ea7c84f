"""Transactions in memory by the business key of their begin. Pure."""

from collections.abc import Callable, Iterator

from txn.in_order import InOrder


class BusinessKeys:
    """Ids of transactions by business key, in the order of their begins.

    A key of one transaction, as nearly all are, takes its entry in a dictionary and nothing more.
    """

    def __init__(self, sequence_of: Callable[[str], int]) -> None:
        """`sequence_of`: the place of a transaction in the order of begins, by its id."""
        self._sequence_of = sequence_of
        self._ids: dict[str, str | InOrder] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, business_key: str, transaction_id: str, sequence: int) -> None:
        known = self._ids.get(business_key)
        if known is None:
            self._ids[business_key] = transaction_id
            return
        if isinstance(known, str):
            several = self._ids[business_key] = InOrder()
            several.add(self._sequence_of(known), known, is_open=True)
            known = several
        known.add(sequence, transaction_id, is_open=True)

    def discard(self, business_key: str, sequence: int) -> None:
        known = self._ids.get(business_key)
        if isinstance(known, InOrder):
            known.discard(sequence)
        if known is not None and (isinstance(known, str) or not len(known)):
            del self._ids[business_key]

    def after(self, business_key: str, sequence: int) -> Iterator[str]:
        """Ids of the transactions with this key that were begun after this sequence number.
        Transactions that are added or discarded during the iteration are respected.
        """
        known = self._ids.get(business_key)
        if isinstance(known, InOrder):
            yield from known.after(sequence)
        elif known is not None and self._sequence_of(known) > sequence:
            yield known
