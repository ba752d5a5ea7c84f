package dev.escrowmq.client;

import dev.escrowmq.client.model.CheckInput;
import java.util.UUID;

/**
 * How a transaction begins.
 *
 * @param transactionId its id: at most 127 letters, digits, '_', '-' and '.'
 * @param markers the table of marker rows for {@link Tx#mark} and {@link Tx#local}, or null
 * @param businessKey the key by which the transaction can be found, or null
 * @param check when the producer is checked, and what happens if the outcome stays unknown, or null
 */
public record TxOptions(
    String transactionId, Markers markers, String businessKey, CheckInput check) {

  /**
   * Sets an id of your own, that of the order for example, which makes a repeated call fail with
   * {@code transaction_exists} instead of publishing twice.
   */
  public static TxOptions id(String transactionId) {
    return new TxOptions(transactionId, null, null, null);
  }

  /** Makes an id. */
  public static TxOptions newId() {
    return id("txn_" + UUID.randomUUID());
  }

  /** Returns the options with this table of marker rows. */
  public TxOptions markers(Markers table) {
    return new TxOptions(transactionId, table, businessKey, check);
  }

  /** Returns the options with this business key. */
  public TxOptions businessKey(String key) {
    return new TxOptions(transactionId, markers, key, check);
  }

  /** Returns the options with these checks. */
  public TxOptions check(CheckInput rules) {
    return new TxOptions(transactionId, markers, businessKey, rules);
  }
}
