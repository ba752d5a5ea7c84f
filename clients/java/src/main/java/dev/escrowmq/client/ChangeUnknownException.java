package dev.escrowmq.client;

/**
 * A change of one revision (If-Match) may have been made, or not: its answer was lost, and when it
 * was sent again, the service refused it with revision_mismatch, as this call has made the change,
 * or another one has. Read the resource, and compare it with what you asked for. The cause is that
 * of the lost answer.
 */
public final class ChangeUnknownException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  private final ProblemException refusal;

  ChangeUnknownException(Exception lost, ProblemException refusal) {
    super(
        lost
            + "; sent again: "
            + refusal.getMessage()
            + "; this call has made the change, or another one has",
        lost);
    this.refusal = refusal;
  }

  /** Returns the refusal of the last try. */
  public ProblemException refusal() {
    return refusal;
  }
}
