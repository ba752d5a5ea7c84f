package dev.escrowmq.client;

/**
 * A webhook was not signed with one of the secrets, or not within five minutes of now. Do not act
 * on it.
 */
public final class InvalidSignatureException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  InvalidSignatureException() {
    super("invalid webhook signature");
  }
}
