"""The routes of transactions."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from app.operations import IDEMPOTENCY_KEY, WRITING, OperationRoute, answer, operation
from app.transactions import handlers
from app.transactions.schemas import (
    BeginInput,
    CheckNowInput,
    CheckNowResult,
    Decision,
    Explanation,
    GetTransactionQuery,
    ListTransactionsQuery,
    NothingInput,
    ResolveInput,
    RollbackInput,
    Transaction,
    TransactionHistory,
    TransactionPage,
)

router = APIRouter(route_class=OperationRoute)

TransactionId = Annotated[str, Path(description="The transaction's id.")]
_DECIDING = ("transaction_not_found", "transaction_expired", "transaction_already_resolved", *WRITING)


@router.post(
    "/v1/transactions",
    **operation(
        "beginTransaction",
        tag="transactions",
        body=BeginInput,
        example={
            "producer_group": "shop",
            "business_key": "order-8812",
            "messages": [{"topic": "orders", "message": {"key": "8812", "json": {"order_id": 8812}}}],
            "check": {"first_after_ms": 10_000, "interval_ms": 30_000, "max_answers": 15, "on_exhausted": "hold"},
        },
        answers={201: Transaction},
        answer_headers=["Location", "Store-Pressure", "Idempotency-Replayed"],
        headers=[IDEMPOTENCY_KEY],
        problems=[
            "topic_not_found", "queue_not_found", "transaction_exists", "idempotency_in_progress", "idempotency_key_reused",
            "message_too_large", "unsupported_combination", "reserved_topic", "too_many_open_transactions",
            "not_supported_by_engine", *WRITING,
        ],
    ),
)  # fmt: skip
async def begin_transaction(request: Request) -> Response:
    """Begin a transaction. Its messages are stored, and seen by nobody before it commits."""
    return await answer(request, handlers.begin)


@router.get(
    "/v1/transactions",
    **operation(
        "listTransactions",
        tag="transactions",
        query=ListTransactionsQuery,
        answers={200: TransactionPage},
        problems=["invalid_page_token"],
    ),
)
async def list_transactions(request: Request) -> Response:
    """List transactions. They come in the order in which they were begun."""
    return await answer(request, handlers.list_)


@router.get(
    "/v1/transactions/{transaction_id}",
    **operation(
        "getTransaction",
        tag="transactions",
        query=GetTransactionQuery,
        answers={200: Transaction},
        problems=[
            "transaction_not_found",
            "transaction_expired",
            "too_many_waiting",
            "record_corrupt",
            "not_supported_by_engine",
        ],
    ),
)
async def get_transaction(transaction_id: TransactionId, request: Request) -> Response:
    """Look at a transaction. With `wait_ms` the answer waits until it is decided or held, `as_of` tells how it stood."""
    return await answer(request, handlers.get, transaction_id)


@router.get(
    "/v1/transactions/{transaction_id}/history",
    **operation(
        "getTransactionHistory",
        tag="transactions",
        answers={200: TransactionHistory},
        problems=["transaction_not_found", "transaction_expired", "record_corrupt", "not_supported_by_engine"],
    ),
)
async def get_transaction_history(transaction_id: TransactionId, request: Request) -> Response:
    """What happened to a transaction. As the log tells it, oldest first."""
    return await answer(request, handlers.history, transaction_id)


@router.get(
    "/v1/transactions/{transaction_id}/explain",
    **operation(
        "explainTransaction",
        tag="transactions",
        answers={200: Explanation},
        problems=["transaction_not_found", "transaction_expired", "record_corrupt"],
    ),
)
async def explain_transaction(transaction_id: TransactionId, request: Request) -> Response:
    """A transaction in words. How it stands, why, and what comes next."""
    return await answer(request, handlers.explain, transaction_id)


@router.post(
    "/v1/transactions/{transaction_id}/commit",
    **operation(
        "commitTransaction",
        tag="transactions",
        body=NothingInput,
        example={},
        body_is_optional=True,
        answers={200: Decision},
        problems=_DECIDING,
    ),
)
async def commit_transaction(transaction_id: TransactionId, request: Request) -> Response:
    """Commit. When this is answered, consumers can see the messages. The first decision wins."""
    return await answer(request, handlers.commit, transaction_id)


@router.post(
    "/v1/transactions/{transaction_id}/rollback",
    **operation(
        "rollbackTransaction",
        tag="transactions",
        body=RollbackInput,
        example={"reason": "payment refused"},
        body_is_optional=True,
        answers={200: Decision},
        problems=_DECIDING,
    ),
)
async def rollback_transaction(transaction_id: TransactionId, request: Request) -> Response:
    """Roll back. Nobody will ever see the messages. The first decision wins."""
    return await answer(request, handlers.rollback, transaction_id)


@router.post(
    "/v1/transactions/{transaction_id}/check",
    **operation(
        "checkTransaction",
        tag="transactions",
        body=CheckNowInput,
        example={"dry_run": False},
        body_is_optional=True,
        answers={200: CheckNowResult},
        problems=[*_DECIDING, "unsupported_combination"],
    ),
)
async def check_transaction(transaction_id: TransactionId, request: Request) -> Response:
    """Ask the producer now. What it answers counts as if it had been asked in turn, unless it is a dry run."""
    return await answer(request, handlers.check, transaction_id)


@router.post(
    "/v1/transactions/{transaction_id}/resolve",
    **operation(
        "resolveTransaction",
        tag="transactions",
        body=ResolveInput,
        example={"decision": "rollback", "reason": "INC-311"},
        answers={200: Decision},
        problems=_DECIDING,
    ),
)
async def resolve_transaction(transaction_id: TransactionId, request: Request) -> Response:
    """Decide as an operator. It may be a held transaction or any other that is open."""
    return await answer(request, handlers.resolve, transaction_id)


@router.post(
    "/v1/transactions/{transaction_id}/resume",
    **operation(
        "resumeTransaction",
        tag="transactions",
        body=NothingInput,
        example={},
        body_is_optional=True,
        answers={200: Transaction},
        problems=_DECIDING,
    ),
)
async def resume_transaction(transaction_id: TransactionId, request: Request) -> Response:
    """Have a held transaction checked again. Its count of answers starts at 0."""
    return await answer(request, handlers.resume, transaction_id)
