"""States of a transaction and the events that change them. Every pair that is not in the table is
refused.
"""

from enum import StrEnum

from storage.errors import TransactionConflict


class TxnState(StrEnum):
    PREPARED = "prepared"
    HELD = "held"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"

    @property
    def is_decided(self) -> bool:
        return self in (TxnState.COMMITTED, TxnState.ROLLED_BACK)


class TxnEvent(StrEnum):
    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    CHECKS_EXHAUSTED = "checks_exhausted"
    RESUME = "resume"


class Resolver(StrEnum):
    """The kind of client that decided."""

    PRODUCER = "producer"
    CHECK = "check"
    OPERATOR = "operator"
    POLICY = "policy"


TRANSITIONS: dict[tuple[TxnState, TxnEvent], TxnState] = {
    (TxnState.PREPARED, TxnEvent.COMMIT): TxnState.COMMITTED,
    (TxnState.PREPARED, TxnEvent.ROLLBACK): TxnState.ROLLED_BACK,
    # the producer does not know yet: ask again later
    (TxnState.PREPARED, TxnEvent.UNKNOWN): TxnState.PREPARED,
    # never lost by policy: a person decides
    (TxnState.PREPARED, TxnEvent.CHECKS_EXHAUSTED): TxnState.HELD,
    (TxnState.PREPARED, TxnEvent.RESUME): TxnState.PREPARED,
    (TxnState.HELD, TxnEvent.COMMIT): TxnState.COMMITTED,
    (TxnState.HELD, TxnEvent.ROLLBACK): TxnState.ROLLED_BACK,
    (TxnState.HELD, TxnEvent.UNKNOWN): TxnState.HELD,  # a late answer that decides nothing
    (TxnState.HELD, TxnEvent.RESUME): TxnState.PREPARED,  # asked again, counts start at 0
    (TxnState.COMMITTED, TxnEvent.COMMIT): TxnState.COMMITTED,  # a repeated request is no error
    (TxnState.ROLLED_BACK, TxnEvent.ROLLBACK): TxnState.ROLLED_BACK,
}


def next_state(
    transaction_id: str, state: TxnState, event: TxnEvent, *, resolved_by: str = ""
) -> TxnState:
    """The state after an event. Raises TransactionConflict if the transaction cannot take the
    event.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        by = f" by {resolved_by}" if resolved_by else ""
        detail = (
            f"transaction {transaction_id} is {state.replace('_', ' ')}{by}; "
            f"{event.replace('_', ' ')} cannot be applied"
        )
        raise TransactionConflict(detail, state=state, resolved_by=resolved_by) from None
