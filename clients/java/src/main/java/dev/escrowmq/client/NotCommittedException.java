package dev.escrowmq.client;

/**
 * The database has no marker row of the transaction, and will have none: the local transaction was
 * rolled back, or never committed. So the messages were discarded.
 *
 * <p>The cause is the failure of the local COMMIT. There is none if the work returned all the same:
 * it forgot to commit, or swallowed an exception.
 */
public final class NotCommittedException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  private final String transactionId;

  NotCommittedException(String transactionId, Throwable cause) {
    super(
        "the local transaction of "
            + transactionId
            + (cause == null
                ? " was not committed: its marker row is missing"
                : " was rolled back: " + cause.getMessage()),
        cause);
    this.transactionId = transactionId;
  }

  /** Returns the transaction's id. */
  public String transactionId() {
    return transactionId;
  }
}
