"""Reads of transactions over HTTP: lists, one of them, its history, an explanation."""

from msgspec import UNSET, UnsetType

from app.encoding import codec, pages
from app.http.exchange import Call, Reply, reply
from app.operations import operation
from app.problems import Refusal, invalid_field
from app.services import Services
from app.transactions.explain import Known
from app.transactions.explain import explain as in_words
from app.transactions.schemas import (
    Explanation,
    GetTransactionQuery,
    ListTransactionsQuery,
    Transaction,
    TransactionHistory,
    TransactionPage,
)
from app.transactions.views import event_view, summary, transaction_view
from txn import transaction as txn
from txn.states import TxnState

# page tokens: behind which transaction in memory, or before which log offset
_REMEMBERED, _FORGOTTEN = "transactions", "decided-transactions"
_LOG_END = 1 << 62


@operation(
    "GET",
    "/v1/transactions",
    "listTransactions",
    tag="transactions",
    scopes=["transact", "operate"],
    checks_access=True,
    query=ListTransactionsQuery,
    answers={200: TransactionPage},
    problems=["invalid_page_token", "record_corrupt", "reserved_topic"],
)
async def list_(services: Services, call: Call, query: ListTransactionsQuery) -> Reply:
    """List transactions. In the order in which they were begun. A key for some groups gets
    those of its groups.
    """
    states = _states(query.state)
    now_ms = services.clock.wall_ms()
    begun_before_ms = now_ms - query.older_than_ms
    group, token, page_size = query.producer_group, query.page_token, query.page_size
    if group is not UNSET:
        services.producer_groups.check_name(group)
    business_key = None if query.business_key is UNSET else query.business_key

    def is_wanted(transaction: txn.Transaction) -> bool:
        return (
            transaction.state in states
            and transaction.prepared_at_ms <= begun_before_ms
            and (group is UNSET or transaction.producer_group == group)
            and call.access.may_use_group(transaction.producer_group)
        )

    found: list[txn.Transaction] = []
    older_than = None if business_key is None else _forgotten_position(token)
    next_token = None
    if older_than is None:
        found = await services.transactions.search(
            after=-1 if token is UNSET else pages.decode_number_token(_REMEMBERED, token),
            states=states,
            wanted=is_wanted,
            most=page_size + 1,
            business_key=business_key,
        )
        older_than = _LOG_END
    if len(found) > page_size:
        del found[page_size:]
        next_token = pages.encode_token(_REMEMBERED, str(found[-1].sequence))
    elif business_key is not None and any(state.is_decided for state in states):
        room = page_size - len(found)
        more, following = await services.transactions.search_forgotten(
            business_key, older_than=older_than, wanted=is_wanted, most=room or 1
        )
        if more and not room:  # there is another page
            following = older_than
        found += more[:room]
        if following is not None:
            next_token = pages.encode_token(_FORGOTTEN, str(following))
    page = TransactionPage(items=[summary(transaction, now_ms) for transaction in found])
    if next_token is not None:
        page.next_page_token = next_token
    return reply(200, page)


def _forgotten_position(token: str | UnsetType) -> int | None:
    """The log offset in the token of a page that continues with transactions of the log; None for
    any other token.
    """
    if token is UNSET:
        return None
    try:
        return pages.decode_number_token(_FORGOTTEN, token)
    except Refusal:
        return None


@operation(
    "GET",
    "/v1/transactions/{transaction_id}",
    "getTransaction",
    tag="transactions",
    scopes=["transact", "operate"],
    checks_access=True,
    query=GetTransactionQuery,
    answers={200: Transaction},
    problems=[
        "transaction_not_found",
        "transaction_expired",
        "too_many_waiting",
        "record_corrupt",
        "not_supported_by_engine",
    ],
)
async def get(
    services: Services, call: Call, transaction_id: str, query: GetTransactionQuery
) -> Reply:
    """Get a transaction.

    With `wait_ms` the response waits until the transaction is decided or held. `as_of` returns its
    state at an earlier time.
    """
    await check_access(services, call, transaction_id)
    if query.as_of is not UNSET:
        return reply(200, transaction_view(await _as_of(services, transaction_id, query.as_of)))
    wait_ms = query.wait_ms
    if wait_ms and (await services.transactions.get(transaction_id)).state is TxnState.PREPARED:
        async with services.long_poll(call):
            await services.transactions.wait_until_not_prepared(transaction_id, timeout_ms=wait_ms)
    return reply(200, transaction_view(await services.transactions.get(transaction_id)))


@operation(
    "GET",
    "/v1/transactions/{transaction_id}/history",
    "getTransactionHistory",
    tag="transactions",
    scopes=["transact", "operate"],
    checks_access=True,
    answers={200: TransactionHistory},
    problems=[
        "transaction_not_found",
        "transaction_expired",
        "record_corrupt",
        "not_supported_by_engine",
    ],
)
async def history(services: Services, call: Call, transaction_id: str) -> Reply:
    """Get the history of a transaction. All events that the log holds, oldest first."""
    await check_access(services, call, transaction_id)
    events = await services.transactions.history(transaction_id)
    return reply(200, TransactionHistory(items=[event_view(event) for event in events]))


@operation(
    "GET",
    "/v1/transactions/{transaction_id}/explain",
    "explainTransaction",
    tag="transactions",
    scopes=["transact", "operate"],
    checks_access=True,
    answers={200: Explanation},
    problems=["transaction_not_found", "transaction_expired", "record_corrupt"],
)
async def explain(services: Services, call: Call, transaction_id: str) -> Reply:
    """Explain a transaction in words. Its state, the reason for it, and the next step."""
    await check_access(services, call, transaction_id)
    transactions = services.transactions
    transaction = await transactions.get(transaction_id)
    events = await transactions.history(transaction_id)
    group = services.producer_groups.find(transaction.producer_group)
    known = Known(
        transaction=transaction,
        group=group,
        events=events,
        check_wait_ms=transactions.check_wait_ms(transaction),
        host_pause_ms=services.sender.pause_ms(transaction.producer_group),
        now_ms=services.clock.wall_ms(),
    )
    return reply(200, in_words(known))


async def check_access(services: Services, call: Call, transaction_id: str) -> None:
    """Raise Refusal forbidden unless the key is for the producer group of the transaction."""
    if call.access.is_limited:
        transaction = await services.transactions.get(transaction_id)
        call.access.check_group(transaction.producer_group)


async def _as_of(services: Services, transaction_id: str, moment: str) -> txn.Transaction:
    at_ms = codec.parse_time(moment, "/query/as_of")
    if at_ms > services.clock.wall_ms():
        raise invalid_field("/query/as_of", "out_of_range", "must not be in the future")
    return await services.transactions.as_of(transaction_id, at_ms)


def _states(given: str | UnsetType) -> frozenset[TxnState]:
    if given is UNSET:
        return frozenset(TxnState)
    words = given.split(",")
    try:
        return frozenset(TxnState(word.strip()) for word in words)
    except ValueError:
        known = ", ".join(TxnState)
        raise invalid_field("/query/state", "not_allowed", f"a state is one of {known}") from None
