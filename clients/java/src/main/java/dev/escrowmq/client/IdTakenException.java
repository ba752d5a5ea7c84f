package dev.escrowmq.client;

import java.util.Optional;

/**
 * A transaction with this id was begun with other messages or fields, such as a timestamp in the
 * JSON. Nothing was begun, and that transaction goes on as it was. An id has the same messages each
 * time.
 */
public final class IdTakenException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  private final String transactionId;
  private final String state;

  private IdTakenException(String transactionId, String state, ProblemException cause) {
    super(
        "transaction "
            + transactionId
            + " exists with other messages or fields, and is "
            + (state == null ? "being begun" : state)
            + "; repeat it with the same, or use another id",
        cause);
    this.transactionId = transactionId;
    this.state = state;
  }

  /** Returns what to throw for the refusal of a begin. */
  static EscrowMQException of(String transactionId, ProblemException refused) {
    // The key of a begin is made of its id.
    return refused.is("idempotency_key_reused", "transaction_exists")
        ? new IdTakenException(transactionId, refused.problem().getContext().get("state"), refused)
        : refused;
  }

  /** Returns the transaction's id. */
  public String transactionId() {
    return transactionId;
  }

  /**
   * Returns the state of the transaction that has the id, for example {@code prepared}; empty while
   * its begin is still running.
   */
  public Optional<String> state() {
    return Optional.ofNullable(state);
  }
}
