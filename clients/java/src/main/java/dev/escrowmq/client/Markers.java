package dev.escrowmq.client;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.regex.Pattern;
import javax.sql.DataSource;

/**
 * A table with one row for each transaction whose outcome is known to the database.
 *
 * <p>The producer's own transaction inserts (id, commit). A check of an id without a row inserts
 * (id, rollback) before it answers: a producer that is slower than the check then collides with
 * that row and cannot commit any more. So both see one outcome, whichever comes first.
 */
public final class Markers {
  private static final Pattern NAME =
      Pattern.compile("[A-Za-z_][A-Za-z0-9_]*(\\.[A-Za-z_][A-Za-z0-9_]*)?");

  private static final int PATIENCE_SECONDS = 5; // of a statement outside the caller's transaction

  /** The SQL of one kind of database. */
  public enum Dialect {
    /** PostgreSQL 9.5 or later. */
    POSTGRESQL,
    /** MySQL and MariaDB. */
    MYSQL,
    /** SQLite 3.24 or later. */
    SQLITE,
  }

  private final Dialect dialect;
  private final String table;

  /** Uses the table escrowmq_markers. */
  public Markers(Dialect dialect) {
    this(dialect, "escrowmq_markers");
  }

  /** Uses a table of this name: letters, digits, '_', with an optional schema. */
  public Markers(Dialect dialect, String table) {
    if (!NAME.matcher(table).matches()) {
      throw new IllegalArgumentException("'" + table + "' is not the name of a table");
    }
    this.dialect = dialect;
    this.table = table;
  }

  /** Creates the table if it does not exist. */
  public void createTable(DataSource database) throws SQLException {
    // Ids differ by case, which MySQL's default collation takes no notice of.
    var suffix = dialect == Dialect.MYSQL ? " CHARACTER SET ascii COLLATE ascii_bin" : "";
    var definition =
        "CREATE TABLE IF NOT EXISTS "
            + table
            + " (transaction_id VARCHAR(255) NOT NULL PRIMARY KEY,"
            + " outcome VARCHAR(8) NOT NULL, written_at_ms BIGINT NOT NULL)"
            + suffix;
    onItsOwn(database, connection -> execute(connection, definition));
  }

  /**
   * Writes the marker row within the producer's own transaction.
   *
   * @throws FencedException if a check was faster
   * @throws IllegalStateException if the connection commits each statement by itself
   */
  public void mark(Connection local, String transactionId) throws SQLException {
    if (local.getAutoCommit()) {
      throw new IllegalStateException("a marker row needs a transaction: setAutoCommit(false)");
    }
    if (!insert(local, transactionId, "commit")) {
      throw new FencedException(transactionId);
    }
  }

  /**
   * Answers a check: COMMIT if the producer's transaction has committed; otherwise ROLLBACK, and
   * the producer's transaction cannot commit any more. While the producer's transaction is open
   * this waits for its row, for at most 5 seconds. An exception means that the outcome is unknown.
   */
  public Decision outcome(DataSource database, String transactionId) throws SQLException {
    // Two statements with a commit of their own: the second sees what the first has collided with.
    return onItsOwn(
        database,
        connection ->
            insert(connection, transactionId, "rollback")
                ? Decision.ROLLBACK
                : stored(connection, transactionId));
  }

  /** Returns {@link #outcome} of this database, for {@link Checker} and {@link CheckHandler}. */
  public Outcomes outcomes(DataSource database) {
    return transactionId -> outcome(database, transactionId);
  }

  /**
   * Deletes rows that are older than this, and returns their number. It must be longer than a
   * transaction can stay undecided at the service (a day, unless its check says otherwise): a row
   * that is gone is a rollback to the next check.
   */
  public int prune(DataSource database, Duration age) throws SQLException {
    var oldest = System.currentTimeMillis() - age.toMillis();
    var delete = "DELETE FROM " + table + " WHERE written_at_ms < ?";
    return onItsOwn(database, connection -> execute(connection, delete, oldest));
  }

  /** Reports whether the row is new. It waits for another transaction that has inserted it. */
  private boolean insert(Connection connection, String transactionId, String outcome)
      throws SQLException {
    var into = "INTO " + table + " (transaction_id, outcome, written_at_ms) VALUES (?, ?, ?)";
    var statement =
        dialect == Dialect.MYSQL
            ? "INSERT IGNORE " + into
            : "INSERT " + into + " ON CONFLICT (transaction_id) DO NOTHING";
    var now = System.currentTimeMillis();
    return execute(connection, statement, transactionId, outcome, now) == 1;
  }

  private Decision stored(Connection connection, String transactionId) throws SQLException {
    var query = "SELECT outcome FROM " + table + " WHERE transaction_id = ?";
    try (var statement = connection.prepareStatement(query)) {
      statement.setString(1, transactionId);
      try (var rows = statement.executeQuery()) {
        if (!rows.next()) {
          throw new SQLException("the marker row of " + transactionId + " has gone");
        }
        return rows.getString(1).equals("commit") ? Decision.COMMIT : Decision.ROLLBACK;
      }
    }
  }

  private static int execute(Connection connection, String text, Object... arguments)
      throws SQLException {
    try (var statement = connection.prepareStatement(text)) {
      if (connection.getAutoCommit()) {
        statement.setQueryTimeout(PATIENCE_SECONDS);
      }
      for (int place = 0; place < arguments.length; place++) {
        statement.setObject(place + 1, arguments[place]);
      }
      return statement.executeUpdate();
    }
  }

  private interface Query<T> {
    T run(Connection connection) throws SQLException;
  }

  /** Runs statements that commit by themselves, and leaves the connection as it was. */
  private static <T> T onItsOwn(DataSource database, Query<T> query) throws SQLException {
    try (var connection = database.getConnection()) {
      var commitsItself = connection.getAutoCommit();
      connection.setAutoCommit(true);
      try {
        return query.run(connection);
      } finally {
        connection.setAutoCommit(commitsItself);
      }
    }
  }
}
