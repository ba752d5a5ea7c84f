"""Publishes the messages of a local transaction of an outbox, once.

The id of their transaction is `ob-` and the `tx_id`. A check may roll it back, as the marker table
of the group has no marker of it. Then it is begun again under the next id, `ob2-...`, which no
other `tx_id` has: its messages are published once all the same.

What has that id already is theirs if it has the same producer group and the same messages. Before
a commit only the service can tell: it answers the begin as a repeated one. A transaction that it
does not know as theirs is not committed.
"""

from itertools import count
from typing import TYPE_CHECKING

from escrowmq_client.errors import AlreadyResolved, InvalidAnswer, ProblemError
from escrowmq_client.models.transactions import Transaction, TransactionMessageInput
from escrowmq_client.same_message import is_same

if TYPE_CHECKING:
    from escrowmq_client.client import Client

_NOT_KNOWN = ("transaction_not_found", "transaction_expired")
_OF_ANOTHER = "idempotency_key_reused"  # the key of a begin is its id
_UNDECIDED = ("prepared", "held")
_NOT_READABLE = ("message_not_found", "message_expired")


class AnotherTransaction(ValueError):
    """A transaction that has the id of some rows, and other messages than they."""


class Publisher:
    """Commits messages under the ids of an outbox."""

    def __init__(self, client: "Client", group: str) -> None:
        self._client = client
        self._group = group

    def publish(self, tx_id: str, messages: list[TransactionMessageInput]) -> None:
        """Commit them in one transaction, whatever of it was done before.

        Raises AnotherTransaction.
        """
        state = self._commit_begun(f"ob-{tx_id}", messages)
        for number in count(2):
            if state == "committed":
                return
            # its id by earlier versions of this client, which is that of another `tx_id`, too
            known = self._commit_known(f"ob-{tx_id}.{number}", messages)
            state = known or self._commit_begun(f"ob{number}-{tx_id}", messages)

    def _commit_begun(self, transaction_id: str, messages: list[TransactionMessageInput]) -> str:
        """Begin the transaction if it was not begun before, and commit it; its state.

        Raises AnotherTransaction.
        """
        try:
            begun = self._client.begin_transaction(
                self._group,
                messages,
                transaction_id=transaction_id,
                idempotency_key=transaction_id,
            )
        except ProblemError as error:
            if error.code != "transaction_exists":
                raise
            return self._state_of_same(transaction_id, messages)
        return self._commit(begun)

    def _commit_known(
        self, transaction_id: str, messages: list[TransactionMessageInput]
    ) -> str | None:
        """Commit the transaction of these messages that has the id; None if there is none."""
        try:
            self._client.get_transaction(transaction_id)
            return self._commit_begun(transaction_id, messages)
        except AnotherTransaction:
            return None
        except ProblemError as error:
            if error.code not in (*_NOT_KNOWN, _OF_ANOTHER):
                raise
            return None

    def _state_of_same(self, transaction_id: str, messages: list[TransactionMessageInput]) -> str:
        """State of a decided transaction whose begin had other bytes, such as those of another
        version of this client.

        Raises AnotherTransaction if its messages are others, or cannot be compared: they can be
        read once they are committed.
        """
        found = self._client.get_transaction(transaction_id)
        if found.producer_group != self._group:
            raise _another(transaction_id, f"its producer group is {found.producer_group}")
        if [one.topic for one in found.messages] != [one.topic for one in messages]:
            raise _another(transaction_id, "its messages have other topics")
        if found.state in _UNDECIDED:
            raise _another(transaction_id, f"it was begun with another body, and is {found.state}")
        if found.state == "committed":
            self._compare(found, messages)
        return _decided(transaction_id, found.state)

    def _compare(self, found: Transaction, messages: list[TransactionMessageInput]) -> None:
        """Raise AnotherTransaction if its messages are not these, or cannot be read."""
        for one, given in zip(found.messages, messages, strict=True):
            try:
                stored = self._client.get_message(one.message_id)
                if is_same(stored, given.message):
                    continue
            except ProblemError as error:
                if error.code not in _NOT_READABLE:
                    raise
                raise _another(
                    found.transaction_id, f"message {one.message_id} cannot be read: {error}"
                ) from error
            raise _another(found.transaction_id, f"message {one.message_id} is not that of a row")

    def _commit(self, begun: Transaction) -> str:
        state = begun.state
        if state in _UNDECIDED:
            try:
                state = self._client.commit_transaction(begun.transaction_id).state
            except AlreadyResolved as error:
                state = error.state
        return _decided(begun.transaction_id, state)


def _decided(transaction_id: str, state: str) -> str:
    """Return the state; begun again in any other one, it might be published twice.

    Raises InvalidAnswer.
    """
    if state not in ("committed", "rolled_back"):
        raise InvalidAnswer(f"transaction {transaction_id} is {state or 'in no state'}")
    return state


def _another(transaction_id: str, why: str) -> AnotherTransaction:
    return AnotherTransaction(
        f"transaction {transaction_id} is not known to be that of the rows, and another outbox may "
        f"use the same tx_id: {why}"
    )
