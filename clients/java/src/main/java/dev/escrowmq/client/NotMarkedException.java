package dev.escrowmq.client;

/**
 * A transaction with markers ended without {@link Tx#local} or {@link Tx#mark}. Nothing is
 * published; the local transaction may have committed without its messages.
 */
public final class NotMarkedException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  NotMarkedException(String transactionId) {
    super(transactionId + " has markers, and ended without Tx.local or Tx.mark");
  }
}
