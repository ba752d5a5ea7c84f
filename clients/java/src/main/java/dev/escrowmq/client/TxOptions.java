package dev.escrowmq.client;

import dev.escrowmq.client.model.CheckInput;
import java.util.Objects;
import java.util.UUID;
import javax.sql.DataSource;

/**
 * How a transaction begins.
 *
 * @param transactionId its id: at most 127 letters, digits, '_', '-' and '.'
 * @param isShared whether another call may have the id, too
 * @param markers the table of marker rows for {@link Tx#mark} and {@link Tx#local}, or null
 * @param database the database that has the table, or null
 * @param businessKey the key by which the transaction can be found, or null
 * @param check when the producer is checked, and what happens if the outcome stays unknown, or null
 */
public record TxOptions(
    String transactionId,
    boolean isShared,
    Markers markers,
    DataSource database,
    String businessKey,
    CheckInput check) {

  /**
   * Sets an id of your own. Another call with it and the same messages within a day continues the
   * transaction, after a crash for example: the messages are published once, and {@link Tx#local}
   * does not repeat work that has committed. A transaction that was rolled back stays so ({@link
   * AlreadyResolvedException}): work that is tried again after a failure needs another id. So give
   * the order's id to {@link #businessKey} of {@link #newId}, unless a call must continue an
   * earlier one.
   */
  public static TxOptions id(String transactionId) {
    return new TxOptions(transactionId, true, null, null, null, null);
  }

  /** Makes an id. */
  public static TxOptions newId() {
    return new TxOptions("txn_" + UUID.randomUUID(), false, null, null, null, null);
  }

  /**
   * Returns the options with this table of marker rows, in this database. The row decides: it is
   * read from there when the work has returned.
   */
  public TxOptions markers(Markers table, DataSource in) {
    return new TxOptions(
        transactionId,
        isShared,
        Objects.requireNonNull(table),
        Objects.requireNonNull(in),
        businessKey,
        check);
  }

  /** Returns the options with this business key. */
  public TxOptions businessKey(String key) {
    return new TxOptions(transactionId, isShared, markers, database, key, check);
  }

  /** Returns the options with these checks. */
  public TxOptions check(CheckInput rules) {
    return new TxOptions(transactionId, isShared, markers, database, businessKey, rules);
  }
}
