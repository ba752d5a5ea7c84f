package dev.escrowmq.client;

/** A handler throws this to move its message to the dead letters at once. */
public final class DeadLetterException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  /** Sets the message aside; the reason is stored with it. */
  public DeadLetterException(String reason) {
    super(reason);
  }
}
