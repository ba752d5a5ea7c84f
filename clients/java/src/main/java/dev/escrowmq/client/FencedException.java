package dev.escrowmq.client;

/**
 * A check was answered with rollback before the local transaction wrote its marker row. Roll the
 * local transaction back.
 */
public final class FencedException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  private Decision outcome;

  FencedException(String transactionId) {
    super("a check has already rolled " + transactionId + " back");
  }

  /**
   * Returns, when the transaction has ended, what the row says: ROLLBACK, try the work again with
   * another id; COMMIT, an earlier call with this id has done the work; null, the database could
   * not be asked.
   */
  public Decision outcome() {
    return outcome;
  }

  void outcome(Decision found) {
    outcome = found;
  }
}
