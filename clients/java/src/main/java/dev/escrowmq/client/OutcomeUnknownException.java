package dev.escrowmq.client;

/**
 * The local transaction may or may not have committed: the marker table cannot be read, or the
 * local transaction is still open. Nothing was decided at the service; the check asks the database.
 */
public final class OutcomeUnknownException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  private final String transactionId;

  OutcomeUnknownException(String transactionId, Throwable cause) {
    super("whether " + transactionId + " committed locally is unknown until its check", cause);
    this.transactionId = transactionId;
  }

  /** Returns the transaction's id. */
  public String transactionId() {
    return transactionId;
  }
}
