package dev.escrowmq.client.live;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.sun.net.httpserver.HttpServer;
import dev.escrowmq.client.CheckHandler;
import dev.escrowmq.client.AlreadyResolvedException;
import dev.escrowmq.client.Checker;
import dev.escrowmq.client.DeadLetterException;
import dev.escrowmq.client.Decision;
import dev.escrowmq.client.EscrowMQ;
import dev.escrowmq.client.FencedException;
import dev.escrowmq.client.IdTakenException;
import dev.escrowmq.client.Markers;
import dev.escrowmq.client.Messages;
import dev.escrowmq.client.NotCommittedException;
import dev.escrowmq.client.OutcomeUnknownException;
import dev.escrowmq.client.Outcomes;
import dev.escrowmq.client.ProblemException;
import dev.escrowmq.client.TxOptions;
import dev.escrowmq.client.Worker;
import dev.escrowmq.client.model.CheckInput;
import dev.escrowmq.client.model.DeadLetterEntry;
import dev.escrowmq.client.model.DeadLetterInput;
import dev.escrowmq.client.model.GroupInput;
import dev.escrowmq.client.model.ProducerGroupInput;
import dev.escrowmq.client.model.ReceiveInput;
import dev.escrowmq.client.model.ReceivedMessage;
import dev.escrowmq.client.model.SubscriptionInput;
import dev.escrowmq.client.model.TopicInput;
import java.net.InetSocketAddress;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import javax.sql.DataSource;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.mariadb.jdbc.MariaDbDataSource;
import org.postgresql.ds.PGSimpleDataSource;
import org.sqlite.SQLiteConfig;
import org.sqlite.SQLiteDataSource;

/**
 * Tests the client against a running service, whose address is ESCROWMQ_URL, and against databases.
 */
@Tag("live")
@Timeout(60)
@EnabledIfEnvironmentVariable(named = "ESCROWMQ_URL", matches = ".+")
class LiveTest {
  private static final AtomicLong COUNTER = new AtomicLong(System.nanoTime());

  @TempDir private Path folder;

  private final EscrowMQ client =
      EscrowMQ.builder(System.getenv("ESCROWMQ_URL"))
          .apiKey(System.getenv("ESCROWMQ_API_KEY"))
          .build();

  /** A failure of the program. */
  private static final class AwayException extends RuntimeException {
    private static final long serialVersionUID = 1L;
  }

  @ParameterizedTest
  @EnumSource
  void messagesArePublishedIfAndOnlyIfTheLocalTransactionCommitted(Markers.Dialect on)
      throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    var paid = unique("paid");
    var refused = unique("refused");

    order(database, markers, topic, paid, false);
    assertThrows(AwayException.class, () -> order(database, markers, topic, refused, true));

    assertEquals("committed", state(paid));
    assertEquals("rolled_back", state(refused));
    assertEquals(Decision.COMMIT, markers.outcome(database, paid));
    assertEquals(0, rows(database, refused));
    assertEquals(1, rows(database, paid));
  }

  private void order(
      DataSource database, Markers markers, String topic, String id, boolean fails)
      throws SQLException {
    client.transaction(
        unique("shop"),
        TxOptions.id(id).markers(markers, database),
        tx -> {
          tx.add(topic, Messages.json(Map.of("id", id)).key(id));
          tx.local(
              connection -> {
                execute(connection, "INSERT INTO orders VALUES ('" + id + "')");
                if (fails) {
                  throw new AwayException();
                }
              });
        });
  }

  @ParameterizedTest
  @EnumSource(names = {"SQLITE", "POSTGRESQL"}) // the others have no deferred constraint
  void aCommitOfTheDatabaseThatFailsIsDecidedByTheMarkerRow(Markers.Dialect on)
      throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    var id = unique("order");
    var items = unique("items");
    execute(
        database,
        "CREATE TABLE "
            + items
            + " (id VARCHAR(100) REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)");

    var failed =
        assertThrows(
            NotCommittedException.class,
            () ->
                client.transaction(
                "shop",
                TxOptions.id(id).markers(markers, database),
                tx -> {
                  tx.add(topic, Messages.text("x"));
                  var insert = "INSERT INTO " + items + " VALUES ('no such order')";
                  tx.local(connection -> execute(connection, insert));
                }));

    assertInstanceOf(SQLException.class, failed.getCause());
    assertEquals("rolled_back", state(id));
    assertEquals(Decision.ROLLBACK, markers.outcome(database, id));
  }

  /** How a local transaction of the caller ends. */
  private interface End {
    void end(Connection local) throws SQLException;
  }

  /** Places an order in a local transaction of its own, which ends so, and is then closed. */
  private void marked(DataSource database, Markers markers, String topic, String id, End how)
      throws SQLException {
    client.transaction(
        "shop",
        TxOptions.id(id).markers(markers, database),
        tx -> {
          tx.add(topic, Messages.text("x")).begin();
          try (var local = database.getConnection()) {
            local.setAutoCommit(false);
            tx.mark(local);
            execute(local, "INSERT INTO orders VALUES ('" + id + "')");
            how.end(local);
          }
        });
  }

  @ParameterizedTest
  @EnumSource
  void workThatForgetsItsCommitIsAnExceptionAndPublishesNothing(Markers.Dialect on)
      throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    var id = unique("order");

    var failed =
        assertThrows(
            NotCommittedException.class,
            () -> marked(database, markers, topic, id, Connection::rollback));

    assertNull(failed.getCause());
    assertEquals("rolled_back", state(id));
    assertEquals(0, rows(database, id));
  }

  @ParameterizedTest
  @EnumSource
  void aFailureAfterTheMarkIsDecidedAtOnceByTheRow(Markers.Dialect on) throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    for (var commits : List.of(true, false)) {
      var id = unique("order");
      End how =
          local -> {
            if (commits) {
              local.commit();
            } else {
              local.rollback();
            }
            throw new AwayException();
          };

      assertThrows(AwayException.class, () -> marked(database, markers, topic, id, how));

      assertEquals(commits ? "committed" : "rolled_back", state(id));
      assertEquals(commits ? 1 : 0, rows(database, id));
    }
  }

  @ParameterizedTest
  @EnumSource
  void aMarkOfWorkThatAnotherCallHasCommittedSaysSo(Markers.Dialect on) throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    var id = unique("order");
    var died = client.open("shop", TxOptions.id(id).markers(markers, database));
    died.add(topic, Messages.text("x"));
    try (var local = database.getConnection()) {
      local.setAutoCommit(false);
      died.mark(local);
      local.commit();
    }

    var fenced =
        assertThrows(
            FencedException.class,
            () -> marked(database, markers, topic, id, Connection::commit));

    assertEquals(Decision.COMMIT, fenced.outcome());
    assertEquals("committed", state(id));
  }

  @Test
  void aLocalTransactionThatIsStillOpenAtTheEndIsLeftToTheCheck() throws SQLException {
    var database = database(Markers.Dialect.POSTGRESQL);
    var markers = markers(Markers.Dialect.POSTGRESQL, database);
    var topic = newTopic();
    var id = unique("order");
    try (var local = database.getConnection()) {
      local.setAutoCommit(false);

      assertThrows(
          OutcomeUnknownException.class,
          () ->
              client.transaction(
                  "shop",
                  TxOptions.id(id).markers(markers, database),
                  tx -> tx.add(topic, Messages.text("x")).mark(local)));

      local.commit();
    }
    assertEquals("prepared", state(id));
    assertEquals(Decision.COMMIT, markers.outcome(database, id));
  }

  @Test
  void aCallWithAnIdOfOtherMessagesLeavesTheirTransactionAlone() {
    var topic = newTopic();
    var id = unique("order");

    assertThrows(
        AwayException.class,
        () ->
            client.transaction(
                "shop",
                TxOptions.id(id),
                tx -> {
                  tx.add(topic, Messages.text("x")).begin();
                  throw new AwayException();
                }));
    var second =
        assertThrows(
            IdTakenException.class,
            () ->
                client.transaction(
                    "shop", TxOptions.id(id), tx -> tx.add(topic, Messages.text("y")).begin()));

    assertTrue(second.getCause() instanceof ProblemException);
    assertTrue(second.getMessage().contains(id));
    assertEquals(Optional.of("prepared"), second.state());
    assertEquals("prepared", state(id));
  }

  /** Places an order, in one of several calls with its id. */
  private void place(DataSource database, Markers markers, String topic, String id, Runnable first)
      throws SQLException {
    client.transaction(
        "shop",
        TxOptions.id(id).markers(markers, database),
        tx -> {
          tx.add(topic, Messages.text("x"));
          tx.local(
              connection -> {
                first.run();
                execute(connection, "INSERT INTO orders VALUES ('" + id + "')");
              });
        });
  }

  private static void fail() {
    throw new AwayException();
  }

  @ParameterizedTest
  @EnumSource
  void aCallWithTheIdOfAProcessThatDiedContinuesItsTransaction(Markers.Dialect on)
      throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    for (var commits : List.of(true, false)) {
      var id = unique("order");
      var died = client.open("shop", TxOptions.id(id).markers(markers, database));
      died.add(topic, Messages.text("x"));
      if (commits) {
        try (var connection = database.getConnection()) {
          connection.setAutoCommit(false);
          died.mark(connection);
          execute(connection, "INSERT INTO orders VALUES ('" + id + "')");
          connection.commit();
        }
      } else {
        died.begin();
      }
      assertEquals("prepared", state(id));

      place(database, markers, topic, id, commits ? LiveTest::fail : () -> {});
      place(database, markers, topic, id, LiveTest::fail); // finds nothing to do

      assertEquals("committed", state(id));
      assertEquals(1, rows(database, id));
    }
  }

  @ParameterizedTest
  @EnumSource
  void aCallWithAnIdThatWasRolledBackSaysSo(Markers.Dialect on) throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    var id = unique("order");
    assertThrows(
        AwayException.class, () -> place(database, markers, topic, id, LiveTest::fail));

    var decided =
        assertThrows(
            AlreadyResolvedException.class, () -> place(database, markers, topic, id, () -> {}));

    assertEquals("rolled_back", decided.state().toString());
    assertEquals(0, rows(database, id));
  }

  @ParameterizedTest
  @EnumSource
  void aLocalTransactionCanBeTriedAgainWithinItsTransaction(Markers.Dialect on)
      throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    var options = TxOptions.newId().markers(markers, database);

    client.transaction(
        "shop",
        options,
        tx -> {
          tx.add(topic, Messages.text("x"));
          assertThrows(
              AwayException.class, () -> tx.local(connection -> LiveTest.fail()));
          tx.local(connection -> {});
        });

    assertEquals("committed", state(options.transactionId()));
  }

  @ParameterizedTest
  @EnumSource
  void aCallWhoseDatabaseFailsLeavesTheTransactionToAnotherWithItsId(Markers.Dialect on)
      throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    var id = unique("order");
    var away = new SQLiteDataSource();
    away.setUrl("jdbc:sqlite:/no/such/folder/shop.db");

    place(
        database,
        markers,
        topic,
        id,
        () -> {
          var failure =
              assertThrows(
                  SQLException.class, () -> place(away, markers, topic, id, LiveTest::fail));
          assertInstanceOf(OutcomeUnknownException.class, failure.getSuppressed()[0]);
        });

    assertEquals("committed", state(id));
    assertEquals(1, rows(database, id));
  }

  @ParameterizedTest
  @EnumSource
  void aFrameworkThatRollsBackLeavesTheIdOfItsProgramToTheCheck(Markers.Dialect on)
      throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    var id = unique("order");
    try (var tx = client.open("shop", TxOptions.id(id).markers(markers, database));
        var connection = database.getConnection()) {
      tx.add(topic, Messages.text("x"));
      connection.setAutoCommit(false);
      tx.mark(connection);
      connection.rollback();
      tx.rollback();
    }

    place(database, markers, topic, id, () -> {}); // by another process

    assertEquals("committed", state(id));
  }

  @Test
  void withoutALocalTransactionTheMessagesArePublishedUnlessTheWorkFails() {
    var topic = newTopic();
    var id = unique("order");

    assertThrows(
        AwayException.class,
        () ->
            client.transaction(
                "shop",
                TxOptions.id(id),
                tx -> {
                  tx.add(topic, Messages.text("x"));
                  throw new AwayException();
                }));
    var unknown = assertThrows(ProblemException.class, () -> state(id));
    assertEquals(404, unknown.status());

    client.transaction("shop", TxOptions.id(id), tx -> tx.add(topic, Messages.text("x")));
    assertEquals("committed", state(id));
  }

  @ParameterizedTest
  @EnumSource
  void aFrameworkReportsHowTheLocalTransactionEnded(Markers.Dialect on) throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    for (var commits : List.of(true, false)) {
      var options = TxOptions.newId().markers(markers, database);
      try (var tx = client.open("shop", options);
          var connection = database.getConnection()) {
        tx.add(topic, Messages.text("x"));
        connection.setAutoCommit(false);
        tx.mark(connection);
        if (commits) {
          connection.commit();
          tx.commit();
        } else {
          connection.rollback();
          tx.rollback();
        }
      }
      assertEquals(commits ? "committed" : "rolled_back", state(options.transactionId()));
    }
  }

  @ParameterizedTest
  @EnumSource
  void aMarkerRowOutsideOfATransactionIsRefused(Markers.Dialect on) throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    try (var connection = database.getConnection()) {
      assertThrows(IllegalStateException.class, () -> markers.mark(connection, unique("order")));
    }
  }

  @ParameterizedTest
  @EnumSource
  void aCheckThatComesFirstFencesASlowProducer(Markers.Dialect on) throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var topic = newTopic();
    var id = unique("order");

    assertThrows(
        FencedException.class,
        () ->
            client.transaction(
                "shop",
                TxOptions.id(id).markers(markers, database),
                tx -> {
                  tx.add(topic, Messages.text("x"));
                  assertEquals(Decision.ROLLBACK, markers.outcome(database, id));
                  tx.local(
                      connection -> {
                        throw new AwayException(); // never called
                      });
                }));

    assertEquals("rolled_back", state(id));
  }

  @ParameterizedTest
  @EnumSource
  void aCheckBesideAnOpenTransactionNeverAnswersOtherwiseThanItEnds(Markers.Dialect on)
      throws Exception {
    var database = database(on);
    var markers = markers(on, database);
    for (var commits : List.of(true, false)) {
      var id = unique("order");
      try (var connection = database.getConnection()) {
        connection.setAutoCommit(false);
        markers.mark(connection, id);
        var answered = new CompletableFuture<Decision>();
        new Thread(
                () -> {
                  try {
                    answered.complete(markers.outcome(database, id));
                  } catch (SQLException failure) {
                    answered.completeExceptionally(failure);
                  }
                })
            .start();
        Thread.sleep(100);
        if (commits) {
          connection.commit();
        } else {
          connection.rollback();
        }
        var expected = commits ? Decision.COMMIT : Decision.ROLLBACK;
        assertEquals(expected, answered.get(30, TimeUnit.SECONDS));
      }
    }
  }

  @ParameterizedTest
  @EnumSource
  void oldMarkerRowsArePruned(Markers.Dialect on) throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    markers.outcome(database, unique("order"));

    assertEquals(0, markers.prune(database, Duration.ofDays(2)));
    assertEquals(1, markers.prune(database, Duration.ofMillis(-1000)));
  }

  @ParameterizedTest
  @EnumSource
  void aCheckerDecidesWhatTheProducerLeftOpen(Markers.Dialect on) throws SQLException {
    var database = database(on);
    var markers = markers(on, database);
    var group = unique("shop");
    var topic = newTopic();
    var written = unique("written");
    var lost = unique("lost");
    for (var id : List.of(written, lost)) {
      // A process that dies after its local COMMIT, or before it, sends nothing more.
      var soon = new CheckInput().firstAfterMs(10L);
      var options = TxOptions.id(id).markers(markers, database).check(soon);
      var died = client.open(group, options).add(topic, Messages.text("x"));
      try (var connection = database.getConnection()) {
        connection.setAutoCommit(false);
        died.mark(connection);
        if (id.equals(written)) {
          connection.commit();
        } else {
          connection.rollback();
        }
      }
      assertEquals("prepared", state(id));
    }

    try (var checker = new Checker(client, group, markers.outcomes(database))) {
      for (int answered = 0; answered < 2; ) {
        answered += checker.runOnce(Duration.ofSeconds(10));
      }
    }

    assertEquals("committed", state(written));
    assertEquals("rolled_back", state(lost));
  }

  @ParameterizedTest
  @ValueSource(booleans = {true, false})
  void aCheckerWithoutAnOutcomeAnswersUnknownAndEndsWhenItIsClosed(boolean fails)
      throws Exception {
    var group = unique("shop");
    var topic = newTopic();
    var check = new CheckInput().firstAfterMs(10L);
    var tx = client.open(group, TxOptions.newId().check(check)).add(topic, Messages.text("x"));
    var id = tx.id();
    tx.begin();
    Outcomes none =
        transactionId -> {
          if (fails) {
            throw new SQLException("away");
          }
          return null;
        };

    try (var checker = new Checker(client, group, none)) {
      checker.start();
      while (client.transactions().getTransaction(id, null, null).getAnswers() == 0) {
        Thread.sleep(10);
      }
    }

    assertEquals("prepared", state(id));
    tx.rollback();
    assertEquals("rolled_back", state(id));
  }

  @Test
  void theHandlerOfChecksIsSafe() throws Exception {
    var group = unique("shop");
    var secret = new AtomicReference<>("");
    var server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    var handler = new CheckHandler(() -> List.of(secret.get()), id -> Decision.ROLLBACK);
    server.createContext("/", handler.httpHandler());
    server.start();
    try {
      var url = "http://127.0.0.1:" + server.getAddress().getPort() + "/";
      var input = new ProducerGroupInput().checkMode("webhook").checkUrl(url);
      secret.set(client.checks().putProducerGroup(group, null, input).getSigningSecret());

      var tested = client.checks().testCheckEndpoint(group);

      assertTrue(tested.getPassed(), tested.toString());
    } finally {
      server.stop(0);
    }
  }

  @Test
  void aWorkerHandlesEachMessageAndRepeatsThoseThatFailed() {
    var group = unique("billing");
    var topic = newTopic();
    consume(group, topic, new GroupInput().backoffMs(List.of(0L)));
    for (int n = 0; n < 50; n++) {
      client.send(topic, Messages.json(n));
    }
    var seen = new ConcurrentHashMap<Integer, Integer>();
    var done = new AtomicInteger();
    var running = new AtomicReference<Worker>();
    var worker =
        Worker.builder(
                client,
                group,
                delivery -> {
                  int n = delivery.json(Integer.class);
                  var times = seen.merge(n, 1, Integer::sum);
                  if (done.incrementAndGet() == 52) {
                    running.get().stop();
                  }
                  if (n == 7 && times == 1) {
                    throw new AwayException();
                  } else if (n == 8 && times == 1) {
                    throw new AssertionError("a bug");
                  } else if (n == 9) {
                    throw new DeadLetterException("never\nno paper");
                  }
                })
            .concurrency(8)
            .build();
    running.set(worker);

    worker.run();

    assertEquals(50, seen.size());
    assertEquals(List.of(2, 2, 1), List.of(seen.get(7), seen.get(8), seen.get(9)));
    assertEquals(new Worker.Stats(49, 3, 0), worker.stats());
    var dead = client.deadLetters().listDeadLetters(group, null, null, null);
    assertEquals(1, dead.getItems().size());
  }

  @Test
  void aHandlerWhoseLeaseIsLostIsInterruptedAndOneThatIsSlowKeepsIts() throws Exception {
    var group = unique("billing");
    var topic = newTopic();
    consume(group, topic, new GroupInput().leaseMs(600L));
    client.send(topic, Messages.text("slow"));
    client.send(topic, Messages.text("lost"));
    var isLost = new CompletableFuture<Boolean>();
    var extended = new CountDownLatch(1);
    var worker =
        Worker.builder(
                client,
                group,
                delivery -> {
                  if (delivery.text().equals("slow")) {
                    extended.await();
                    return;
                  }
                  // Another program settles it with the same handle.
                  var entry = new DeadLetterEntry();
                  entry.receiptHandle(delivery.message().getReceiptHandle());
                  var entries = new DeadLetterInput().addEntriesItem(entry);
                  client.consume().deadLetterMessages(group, entries);
                  try {
                    Thread.sleep(60_000);
                  } finally {
                    isLost.complete(delivery.isLost());
                  }
                })
            .build();
    new Thread(worker::run).start();

    try (worker) {
      assertTrue(isLost.get(30, TimeUnit.SECONDS));
      Thread.sleep(700); // beyond the first lease
      extended.countDown();
      while (worker.stats().acknowledged() == 0) {
        Thread.sleep(1);
      }
    }

    assertEquals(new Worker.Stats(1, 0, 1), worker.stats());
  }

  @Test
  void aWorkerThatStopsGivesBackWhatItHasNotFinished() {
    var group = unique("billing");
    var topic = newTopic();
    consume(group, topic, new GroupInput());
    client.send(topic, Messages.text("patient"));
    client.send(topic, Messages.text("deaf"));
    var started = new AtomicInteger();
    var running = new AtomicReference<Worker>();
    var worker =
        Worker.builder(
                client,
                group,
                delivery -> {
                  if (started.incrementAndGet() == 2) {
                    running.get().stop();
                  }
                  var until = System.nanoTime() + Duration.ofSeconds(10).toNanos();
                  while (System.nanoTime() < until) {
                    try {
                      Thread.sleep(1000);
                    } catch (InterruptedException stop) {
                      if (delivery.text().equals("patient")) {
                        throw stop;
                      }
                    }
                  }
                })
            .shutdown(Duration.ofMillis(1))
            .build();
    running.set(worker);
    var begun = System.nanoTime();

    worker.run();

    assertTrue(System.nanoTime() - begun < Duration.ofSeconds(9).toNanos());
    var input = new ReceiveInput().waitMs(5000L).maxMessages(2);
    var again = client.consume().receiveMessages(group, input).getMessages();
    assertEquals(2, again.size());
    assertEquals(2, again.get(0).getAttempt());
  }

  @Test
  void messagesThatNoHandlerHasBegunKeepTheirLastAttempt() {
    var group = unique("billing");
    var topic = newTopic();
    consume(group, topic, new GroupInput().ordered(true).maxAttempts(1).leaseMs(600_000L));
    for (var text : List.of("first", "second", "third")) {
      client.send(topic, Messages.text(text).orderingKey("k"));
    }
    var running = new AtomicReference<Worker>();
    var worker =
        Worker.builder(
                client,
                group,
                delivery -> {
                  running.get().stop();
                  try {
                    Thread.sleep(60_000); // the others wait for it
                  } catch (InterruptedException stop) {
                    return;
                  }
                })
            .shutdown(Duration.ofMillis(1))
            .build();
    running.set(worker);

    worker.run();

    assertEquals(new Worker.Stats(1, 2, 0), worker.stats());
    var dead = client.deadLetters().listDeadLetters(group, null, null, null);
    assertTrue(dead.getItems().isEmpty());
    var input = new ReceiveInput().waitMs(5000L).maxMessages(3);
    var again = client.consume().receiveMessages(group, input).getMessages();
    assertEquals(
        List.of("second", "third"), again.stream().map(ReceivedMessage::getPayload).toList());
    assertEquals(List.of(1, 1), again.stream().map(ReceivedMessage::getAttempt).toList());
  }

  @Test
  void aWorkerOfAGroupThatDoesNotExistSaysSo() {
    var worker = Worker.builder(client, unique("nowhere"), delivery -> {}).build();

    var refused = assertThrows(ProblemException.class, worker::run);

    assertTrue(refused.is("group_not_found"));
    worker.close();
  }

  private DataSource database(Markers.Dialect on) throws SQLException {
    var database =
        switch (on) {
          case SQLITE -> sqlite();
          case POSTGRESQL -> postgresql();
          case MYSQL -> mysql();
        };
    execute(database, "CREATE TABLE IF NOT EXISTS orders (id VARCHAR(100) PRIMARY KEY)");
    return database;
  }

  private DataSource sqlite() {
    var config = new SQLiteConfig();
    config.setBusyTimeout(10_000);
    config.setJournalMode(SQLiteConfig.JournalMode.WAL);
    config.enforceForeignKeys(true);
    var database = new SQLiteDataSource(config);
    database.setUrl("jdbc:sqlite:" + folder.resolve("shop.db"));
    return database;
  }

  private static DataSource postgresql() {
    var url = System.getenv("ESCROWMQ_TEST_POSTGRESQL");
    assumeTrue(url != null, "no server");
    var database = new PGSimpleDataSource();
    database.setURL(url);
    return database;
  }

  private static DataSource mysql() throws SQLException {
    var url = System.getenv("ESCROWMQ_TEST_MYSQL");
    assumeTrue(url != null, "no server");
    return new MariaDbDataSource(url);
  }

  private static Markers markers(Markers.Dialect on, DataSource database) throws SQLException {
    var markers = new Markers(on, unique("markers"));
    markers.createTable(database);
    markers.createTable(database);
    return markers;
  }

  private String newTopic() {
    var topic = unique("orders");
    client.topics().createTopic(new TopicInput().topic(topic), null);
    return topic;
  }

  private void consume(String group, String topic, GroupInput input) {
    input.addTopicsItem(new SubscriptionInput().topic(topic));
    client.groups().putGroup(group, null, input);
  }

  private String state(String id) {
    return client.transactions().getTransaction(id, null, null).getState().getValue();
  }

  private static int rows(DataSource database, String id) throws SQLException {
    try (var connection = database.getConnection();
        var statement = connection.createStatement();
        var found =
            statement.executeQuery("SELECT count(*) FROM orders WHERE id = '" + id + "'")) {
      found.next();
      return found.getInt(1);
    }
  }

  private static void execute(DataSource database, String statement) throws SQLException {
    try (var connection = database.getConnection()) {
      execute(connection, statement);
    }
  }

  private static void execute(Connection connection, String text) throws SQLException {
    try (var statement = connection.createStatement()) {
      statement.executeUpdate(text);
    }
  }

  private static String unique(String name) {
    return name + "_" + COUNTER.incrementAndGet();
  }
}
