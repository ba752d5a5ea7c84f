package dev.escrowmq.client;

import dev.escrowmq.client.model.TransactionState;

/**
 * An earlier call with the same transaction id was decided. Nothing was done. Other work, and work
 * that is tried again after a rollback, needs another id.
 */
public final class AlreadyResolvedException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  private final String transactionId;
  private final TransactionState state;

  AlreadyResolvedException(String transactionId, TransactionState state) {
    super(transactionId + " is " + state + " already; other work needs another id");
    this.transactionId = transactionId;
    this.state = state;
  }

  /** Returns the transaction's id. */
  public String transactionId() {
    return transactionId;
  }

  /** Returns its state: committed or rolled back. */
  public TransactionState state() {
    return state;
  }
}
