"""Begin, commit, send, receive, ack and a refused commit, by what openapi-python-client made."""

import os
from typing import TypeVar

from generated import AuthenticatedClient
from generated.api.consume import ack_messages, receive_messages
from generated.api.messages import send_message
from generated.api.transactions import begin_transaction, commit_transaction, rollback_transaction
from generated.models import (
    AckEntry,
    AckInput,
    BeginInput,
    MessageInput,
    Problem,
    ReceiveInput,
    RollbackInput,
    Transaction,
    TransactionMessageInput,
)

Answer = TypeVar("Answer")

client = AuthenticatedClient(
    base_url=os.environ["ESCROWMQ_URL"],
    token=os.environ["ESCROWMQ_API_KEY"],
    httpx_args={"trust_env": False},
)


def given(answer: Answer | Problem | None) -> Answer:
    if answer is None or isinstance(answer, Problem):
        raise SystemExit(f"refused: {answer}")
    return answer


def begin(transaction_id: str, n: int) -> Transaction:
    message = TransactionMessageInput("live", MessageInput(json={"n": n}, key=f"n-{n}"))
    body = BeginInput("live", [message], transaction_id=transaction_id)
    return given(begin_transaction.sync(client=client, body=body))


print("begin", begin("live-1", 1).state.value)

print("commit", given(commit_transaction.sync("live-1", client=client)).state.value)

receipt = given(
    send_message.sync(
        "live", client=client, body=MessageInput(json={"n": 2}), idempotency_key="live-2"
    )
)
print("send", receipt.durability)

wanted = ReceiveInput(max_messages=10, wait_ms=5_000)
received = given(receive_messages.sync("live", client=client, body=wanted))
print("receive", *(message.payload for message in received.messages))

entries = AckInput([AckEntry(message.receipt_handle) for message in received.messages])
print("ack", given(ack_messages.sync("live", client=client, body=entries)).accepted)

begin("live-3", 3)
given(rollback_transaction.sync("live-3", client=client, body=RollbackInput()))
refused = commit_transaction.sync("live-3", client=client)
assert isinstance(refused, Problem)
print("refused", refused.status, refused.code)
