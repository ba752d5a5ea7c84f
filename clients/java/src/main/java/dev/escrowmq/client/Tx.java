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
     * The service holds the messages; the local transaction is the caller's. A failure came before
     * or after its commit: the check finds out.
     */
    BEGUN(Step.SEND_COMMIT, Step.SEND_NOTHING),
    /** {@code local} failed. Another call with the id may have committed. */
    NOT_COMMITTED(Step.ASK_MARKERS, Step.ASK_MARKERS),
    /** The local transaction has committed, whatever failed afterwards. */
    COMMITTED(Step.SEND_COMMIT, Step.SEND_COMMIT),
    /** Its COMMIT failed, or another call with the id decides. */
    OUTCOME_UNKNOWN(Step.SEND_NOTHING, Step.SEND_NOTHING);

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
  private DataSource database;
  private State state = State.NOT_BEGUN;
  private boolean ended;

  Tx(EscrowMQ client, String producerGroup, TxOptions options) {
    this.client = client;
    markers = options.markers();
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
   * those of an earlier call with the same id. Call it before your database transaction writes a
   * marker of your own, whose id must be unique.
   *
   * @throws AlreadyResolvedException if the transaction was decided before
   * @throws IdTakenException if the id has other messages
   */
  public void begin() {
    if (state != State.NOT_BEGUN) {
      throw new IllegalStateException("this transaction has begun already");
    }
    // Without an answer, or with transaction_exists, another call may have begun this id.
    state = State.OUTCOME_UNKNOWN;
    var key = "begin-" + id(); // the begin of an earlier run is found by it
    TransactionState found;
    try {
      found = client.transactions().beginTransaction(input, key).getState();
    } catch (ProblemException refused) {
      throw IdTakenException.of(id(), refused);
    }
    if (found == TransactionState.COMMITTED || found == TransactionState.ROLLED_BACK) {
      throw new AlreadyResolvedException(id(), found);
    }
    state = State.BEGUN;
  }

  /**
   * Begins the transaction at the service and writes its marker row within your database
   * transaction, which must not commit by itself. If it throws, roll that back; the check decides.
   *
   * @throws FencedException if a check has rolled the transaction back already
   */
  public void mark(Connection local) throws SQLException {
    var table = table();
    begin();
    var written = false;
    try {
      table.mark(local, id());
      written = true;
    } finally {
      if (!written) {
        state = State.OUTCOME_UNKNOWN; // another call with the id may have written the row
      }
    }
  }

  /**
   * Begins the transaction at the service, and runs a database transaction with its marker row on a
   * connection of its own. If an earlier call with the same id has committed, the work is not done
   * again. After an exception that is not that of COMMIT, it may be called again: after a deadlock,
   * for example.
   */
  public <E extends Exception> void local(DataSource database, LocalWork<E> work)
      throws SQLException, E {
    var table = table();
    this.database = database;
    if (state != State.NOT_COMMITTED) {
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

  private <E extends Exception> void runLocal(Markers table, LocalWork<E> work)
      throws SQLException, E {
    try (var connection = database.getConnection()) {
      var commitsItself = connection.getAutoCommit();
      connection.setAutoCommit(false);
      try {
        table.mark(connection, id());
        work.run(connection);
        state = State.OUTCOME_UNKNOWN;
        connection.commit();
        state = State.COMMITTED;
      } catch (Throwable failure) {
        rollBack(connection, commitsItself, failure);
        throw failure;
      }
      connection.setAutoCommit(commitsItself);
    } catch (SQLException failure) {
      if (state == State.OUTCOME_UNKNOWN) {
        throw new OutcomeUnknownException(id(), failure);
      }
      if (state != State.COMMITTED) { // otherwise only the connection could not be put back
        throw failure;
      }
    }
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
   * Publishes the messages, as your database transaction has committed. {@link
   * EscrowMQ#transaction} does so by itself.
   *
   * @throws CommitPendingException if the messages are published later, after a check
   */
  public void commit() {
    if (!ended) {
      end(state.succeeded);
    }
  }

  /**
   * Discards the messages, as your database transaction was rolled back. Do not call it if its
   * COMMIT failed: only a check knows then. With an id of your own, the check discards them, as
   * another call with the id may be about to commit.
   */
  public void rollback() {
    if (!ended) {
      end(state == State.BEGUN && !isShared ? Step.SEND_ROLLBACK : state.failed);
    }
  }

  /** Ends a transaction that was neither committed nor rolled back, by what is known of it. */
  @Override
  public void close() {
    if (!ended) {
      end(state.failed);
    }
  }

  /** Ends the transaction after its work has failed. */
  void fail(Throwable failure) {
    try {
      close();
    } catch (RuntimeException further) {
      failure.addSuppressed(further);
    }
  }

  /** Sends the decision, also from a thread that was interrupted: the service waits for it. */
  private void end(Step step) {
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
        sendOutcome();
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

  private void sendOutcome() {
    Decision outcome;
    try {
      outcome = markers.outcome(database, id());
    } catch (SQLException failure) {
      throw new OutcomeUnknownException(id(), failure);
    }
    if (outcome == Decision.COMMIT) {
      sendCommit();
    } else {
      sendRollback();
    }
  }

  private Markers table() {
    if (markers == null) {
      throw new IllegalStateException("a marker row needs the option markers");
    }
    return markers;
  }
}
