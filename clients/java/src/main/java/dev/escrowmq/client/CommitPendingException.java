package dev.escrowmq.client;

/**
 * The local transaction has committed, and the service could not be reached, so that its messages
 * are published after the check. Nothing is lost; do not repeat the work.
 */
public final class CommitPendingException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  private final String transactionId;

  CommitPendingException(String transactionId, Throwable cause) {
    super("the messages of " + transactionId + " are published after its check", cause);
    this.transactionId = transactionId;
  }

  /** Returns the transaction's id. */
  public String transactionId() {
    return transactionId;
  }
}
