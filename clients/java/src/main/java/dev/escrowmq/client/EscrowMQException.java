package dev.escrowmq.client;

/** A failure that this client reports. */
public class EscrowMQException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  /** Makes an exception with a message. */
  public EscrowMQException(String message) {
    super(message);
  }

  /** Makes an exception with a message and its cause. */
  public EscrowMQException(String message, Throwable cause) {
    super(message, cause);
  }
}
