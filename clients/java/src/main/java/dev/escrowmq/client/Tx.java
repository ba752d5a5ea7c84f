package dev.escrowmq.client;

import dev.escrowmq.client.invoker.ApiException;
import dev.escrowmq.client.model.BeginInput;
import dev.escrowmq.client.model.MessageInput;
import dev.escrowmq.client.model.RollbackInput;
import dev.escrowmq.client.model.TransactionMessageInput;
import dev.escrowmq.client.model.TransactionState;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.ArrayList;
import javax.sql.DataSource;

/** Collects the messages of one transaction. It belongs to one thread. */
public final class Tx implements AutoCloseable {
  /** What is done when the work of a transaction has ended. */
  enum Step {
    SEND_NOTHING,
    /** Begin and commit, one after the other. */
    SEND_BOTH,
    SEND_COMMIT,
    SEND_ROLLBACK,
    /** Ask the marker table, which fences, and send what it says. */
    ASK_MARKERS,
  }

  /** What is known about the local transaction, and what is sent by whether the work failed. */
  enum State {
    /** Nothing was sent to the service. */
    NOT_BEGUN(Step.SEND_BOTH, Step.SEND_NOTHING),
    /**
     * The service holds the messages; a marker, if any, is the caller's. A failure came before or
     * after the local commit: the check finds out.
     */
    BEGUN(Step.SEND_COMMIT, Step.SEND_NOTHING),
    /** A marker row was written in a local transaction of the caller: the row says how it ended. */
    MARKED(Step.ASK_MARKERS, Step.ASK_MARKERS),
    /** {@code local} or {@code mark} failed. Another call with the id may have committed. */
    NOT_COMMITTED(Step.ASK_MARKERS, Step.ASK_MARKERS),
    /** The local transaction has committed, whatever failed afterwards. */
    COMMITTED(Step.SEND_COMMIT, Step.SEND_COMMIT),
    /** The begin failed, or found a decision. Another call with the id may decide. */
    OVER(Step.SEND_NOTHING, Step.SEND_NOTHING);

    final Step succeeded;
    final Step failed;

    State(Step succeeded, Step failed) {
      this.succeeded = succeeded;
      this.failed = failed;
    }
  }

  private final EscrowMQ client;
  private final Markers markers;
  private final BeginInput input;
  private final boolean isShared;
  private final DataSource database;
  private State state = State.NOT_BEGUN;
  private boolean ended;
  private Decision outcome; // that of the row, at the end

  Tx(EscrowMQ client, String producerGroup, TxOptions options) {
    this.client = client;
    markers = options.markers();
    database = options.database();
    isShared = options.isShared();
    input =
        new BeginInput()
            .producerGroup(producerGroup)
            .transactionId(options.transactionId())
            .businessKey(options.businessKey())
            .check(options.check())
            .messages(new ArrayList<>());
  }

  /** Returns the transaction's id. */
  public String id() {
    return input.getTransactionId();
  }

  /** Adds a message, before {@code begin}, {@code mark} or {@code local}. */
  public Tx add(String topic, MessageInput message) {
    if (state != State.NOT_BEGUN) {
      throw new IllegalStateException("the messages of " + id() + " were sent already");
    }
    input.addMessagesItem(new TransactionMessageInput().topic(topic).message(message));
    return this;
  }

  /**
   * Stores the messages at the service, where no consumer sees them before the commit, or finds
   * those of an earlier call with the same id. Call it before your database transaction, so that
   * this is not open while the service is asked; {@code mark} or {@code local} follows, or a marker
   * of your own, whose id must be unique.
   *
   * @throws AlreadyResolvedException if the transaction was decided before
   * @throws IdTakenException if the id has other messages
   */
  public void begin() {
    begin(client);
  }

  private void begin(EscrowMQ by) {
    if (state != State.NOT_BEGUN) {
      throw new IllegalStateException("this transaction has begun already");
    }
    // Without an answer, or with transaction_exists, another call may have begun this id.
    state = State.OVER;
    var key = "begin-" + id(); // the begin of an earlier run is found by it
    TransactionState found;
    try {
      found = by.transactions().beginTransaction(input, key).getState();
    } catch (ProblemException refused) {
      throw IdTakenException.of(id(), refused);
    }
    if (found == TransactionState.COMMITTED || found == TransactionState.ROLLED_BACK) {
      throw new AlreadyResolvedException(id(), found);
    }
    state = State.BEGUN;
  }

  /**
   * Writes the marker row within your database transaction, which must not commit by itself, and
   * begins the transaction at the service first, unless {@code begin} has: then for a few seconds
   * only, as your transaction is open meanwhile. If it throws, roll your transaction back; it may
   * be called again in another one, after a deadlock for example.
   *
   * @throws FencedException if a check has rolled the transaction back already
   */
  public void mark(Connection local) throws SQLException {
    var table = table();
    if (state == State.NOT_BEGUN) {
      begin(client.soon());
    }
    requireBegun();
    state = State.NOT_COMMITTED; // if it fails: another call with the id may have written the row
    table.mark(local, id());
    state = State.MARKED;
  }

  /**
   * Begins the transaction at the service unless {@code begin} has, and runs a database transaction
   * with its marker row on a connection of its own. If an earlier call with the same id has
   * committed, the work is not done again. After an exception it may be called again: after a
   * deadlock, for example.
   *
   * @throws NotCommittedException if its COMMIT failed; the id is used up then
   */
  public <E extends Exception> void local(LocalWork<E> work) throws SQLException, E {
    var table = table();
    if (state == State.NOT_BEGUN) {
      try {
        begin();
      } catch (AlreadyResolvedException decided) {
        if (decided.state() == TransactionState.COMMITTED
            && table.outcome(database, id()) == Decision.COMMIT) {
          return;
        }
        throw decided;
      }
    }
    requireBegun();
    state = State.NOT_COMMITTED;
    try {
      runLocal(table, work);
    } catch (FencedException fenced) {
      // The row that is there is a check's fence, or the marker of another call with this id.
      if (state != State.NOT_COMMITTED || table.outcome(database, id()) != Decision.COMMIT) {
        throw fenced;
      }
      state = State.COMMITTED;
    }
  }

  private void requireBegun() {
    if (state == State.COMMITTED) {
      throw new IllegalStateException("the local transaction of " + id() + " has committed");
    }
    if (state == State.OVER) {
      throw new IllegalStateException("the begin of " + id() + " has failed");
    }
  }

  private <E extends Exception> void runLocal(Markers table, LocalWork<E> work)
      throws SQLException, E {
    var commits = false;
    try (var connection = database.getConnection()) {
      var commitsItself = connection.getAutoCommit();
      connection.setAutoCommit(false);
      try {
        table.mark(connection, id());
        work.run(connection);
        commits = true;
        connection.commit();
        state = State.COMMITTED;
      } catch (Throwable failure) {
        rollBack(connection, commitsItself, failure);
        throw failure;
      }
      connection.setAutoCommit(commitsItself);
    } catch (SQLException failure) {
      if (state == State.COMMITTED) {
        return; // only the connection could not be put back
      }
      if (!commits) {
        throw failure;
      }
      commitFailed(table, failure);
    }
  }

  /** Finds out what became of a local transaction whose COMMIT failed. */
  private void commitFailed(Markers table, SQLException failure) {
    try {
      if (table.outcome(database, id()) == Decision.COMMIT) {
        state = State.COMMITTED;
        return;
      }
    } catch (SQLException further) {
      failure.addSuppressed(further);
      throw new OutcomeUnknownException(id(), failure);
    }
    throw new NotCommittedException(id(), failure);
  }

  private static void rollBack(Connection connection, boolean commitsItself, Throwable failure) {
    try {
      connection.rollback();
      connection.setAutoCommit(commitsItself); // not without the rollback: it would commit
    } catch (SQLException further) {
      failure.addSuppressed(further);
    }
  }

  /** What the local transaction does. */
  @FunctionalInterface
  public interface LocalWork<E extends Exception> {
    /** Writes to the database; the caller commits. */
    void run(Connection connection) throws SQLException, E;
  }

  /**
   * Publishes the messages, as your framework has committed the database transaction: the marker
   * row is not read, which would take a second connection. {@link EscrowMQ#transaction} decides by
   * the row itself.
   *
   * @throws CommitPendingException if the messages are published later, after a check
   */
  public void commit() {
    if (!ended) {
      end(state == State.MARKED ? Step.SEND_COMMIT : state.succeeded, true);
    }
  }

  /** Ends the transaction after its work has returned. */
  void succeed() {
    if (ended) {
      return;
    }
    var lacksMark = markers != null && !input.getMessages().isEmpty();
    if (lacksMark && (state == State.NOT_BEGUN || state == State.BEGUN)) {
      var failure = new NotMarkedException(id());
      if (state == State.BEGUN) {
        state = State.NOT_COMMITTED; // the row says whether there is work
      }
      fail(failure);
      throw failure;
    }
    end(state.succeeded, true);
  }

  /**
   * Discards the messages, as your database transaction was rolled back. Do not call it if its
   * COMMIT failed: only a check knows then. With an id of your own, the check discards them, as
   * another call with the id may be about to commit.
   */
  public void rollback() {
    if (ended) {
      return;
    }
    if (state == State.BEGUN || state == State.MARKED) {
      end(isShared ? Step.SEND_NOTHING : Step.SEND_ROLLBACK, false);
    } else {
      end(state.failed, false);
    }
  }

  /** Ends a transaction that was neither committed nor rolled back, by what is known of it. */
  @Override
  public void close() {
    if (!ended) {
      end(state.failed, false);
    }
  }

  /** Ends the transaction after its work has failed. */
  void fail(Throwable failure) {
    try {
      close();
    } catch (RuntimeException further) {
      failure.addSuppressed(further);
    }
    if (failure instanceof FencedException fenced) {
      fenced.outcome(outcome);
    }
  }

  /** Sends the decision, also from a thread that was interrupted: the service waits for it. */
  private void end(Step step, boolean succeeded) {
    ended = true;
    var interrupted = Thread.interrupted();
    try {
      if (step == Step.SEND_BOTH && !input.getMessages().isEmpty()) {
        try {
          begin();
        } catch (AlreadyResolvedException decided) {
          if (decided.state() == TransactionState.COMMITTED) {
            return; // by an earlier call with the same id
          }
          throw decided;
        }
        sendCommit();
      } else if (step == Step.SEND_COMMIT) {
        sendCommit();
      } else if (step == Step.SEND_ROLLBACK) {
        sendRollback();
      } else if (step == Step.ASK_MARKERS) {
        sendOutcome(succeeded);
      }
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  private void sendCommit() {
    try {
      client.transactions().commitTransaction(id());
    } catch (ProblemException refused) {
      if (refused.isRetryable()) {
        throw new CommitPendingException(id(), refused);
      }
      throw refused;
    } catch (ApiException unanswered) {
      throw new CommitPendingException(id(), unanswered);
    }
  }

  private void sendRollback() {
    try {
      client.transactions().rollbackTransaction(id(), new RollbackInput());
    } catch (ProblemException | ApiException failure) {
      return; // the check rolls back
    }
  }

  private void sendOutcome(boolean succeeded) {
    try {
      outcome = markers.outcome(database, id());
    } catch (SQLException failure) {
      throw new OutcomeUnknownException(id(), failure);
    }
    if (outcome == Decision.COMMIT) {
      sendCommit();
      return;
    }
    sendRollback();
    if (succeeded) {
      throw new NotCommittedException(id(), null);
    }
  }

  private Markers table() {
    if (markers == null) {
      throw new IllegalStateException("a marker row needs the option markers");
    }
    return markers;
  }
}
