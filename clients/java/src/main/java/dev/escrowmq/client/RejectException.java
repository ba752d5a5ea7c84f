package dev.escrowmq.client;

import java.time.Duration;

/**
 * A handler throws this to have its message delivered again after a delay of its own, instead of
 * the group's backoff.
 */
public final class RejectException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  private final Duration delay;

  /** Rejects the message for this long; the reason is stored with it. */
  public RejectException(Duration delay, String reason) {
    super(reason);
    this.delay = delay;
  }

  Duration delay() {
    return delay;
  }
}
