package dev.escrowmq.client;

/**
 * A check was answered with rollback before the local transaction wrote its marker row. Roll the
 * local transaction back.
 */
public final class FencedException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  FencedException(String transactionId) {
    super("a check has already rolled " + transactionId + " back");
  }
}
