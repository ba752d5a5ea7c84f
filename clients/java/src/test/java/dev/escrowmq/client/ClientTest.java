package dev.escrowmq.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import dev.escrowmq.client.api.MessagesApi;
import dev.escrowmq.client.invoker.ApiException;
import dev.escrowmq.client.model.AckInput;
import dev.escrowmq.client.model.BatchSendResult;
import dev.escrowmq.client.model.FieldError;
import dev.escrowmq.client.model.Problem;
import dev.escrowmq.client.model.ReceivedMessage;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.SQLException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.stream.Collectors;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class ClientTest {
  private static final String RECEIPT =
      """
      {"message_id": "msg_ä", "topic": "orders", "stored_at": "2026-11-24T00:00:00Z",
       "durability": "synced", "deduplicated": false}""";
  private static final String BEGUN =
      """
      {"transaction_id": "t", "state": "prepared", "producer_group": "shop", "messages": [],
       "prepared_at": "2026-11-24T00:00:00Z", "answers": 0, "checking": false, "late": false,
       "revision": 1}""";
  private static final Retry SOON =
      new Retry(Duration.ofMinutes(1), Duration.ofNanos(1), Duration.ofNanos(1));

  private final List<String> keys = new ArrayList<>();
  private final List<String> bodies = new ArrayList<>();
  private final List<HttpServer> servers = new ArrayList<>();

  /** An answer of a server, which gives them one after another, and keeps what it was sent. */
  private record Answer(int status, String body) {}

  private EscrowMQ client(Retry retry, Answer... answers) throws IOException {
    keys.clear();
    bodies.clear();
    var server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    servers.add(server);
    server.createContext(
        "/",
        exchange -> {
          keys.add(exchange.getRequestHeaders().getFirst("Idempotency-Key"));
          var sent = exchange.getRequestBody().readAllBytes();
          bodies.add(new String(sent, StandardCharsets.UTF_8));
          var answer = answers[Math.min(bodies.size(), answers.length) - 1];
          var body = answer.body().getBytes(StandardCharsets.UTF_8);
          exchange.getResponseHeaders().set("Content-Type", "application/json");
          exchange.sendResponseHeaders(answer.status(), body.length == 0 ? -1 : body.length);
          exchange.getResponseBody().write(body);
          exchange.close();
        });
    server.start();
    var url = "http://127.0.0.1:" + server.getAddress().getPort() + "/";
    return EscrowMQ.builder(url).retry(retry).build();
  }

  @AfterEach
  void stopServers() {
    servers.forEach(server -> server.stop(0));
  }

  @Test
  void aSendThatIsRepeatedHasTheSameKeyAndTheSameBody() throws IOException {
    var busy = "{\"code\":\"overloaded\",\"status\":503,\"retryable\":true,\"retry_after_ms\":1}";
    var client =
        client(SOON, new Answer(503, busy), new Answer(429, "busy"), new Answer(201, RECEIPT));

    var receipt = client.send("orders", Messages.json(Map.of("n", "ü")));

    assertEquals("msg_ä", receipt.getMessageId());
    assertEquals(3, keys.size());
    assertNotNull(keys.get(0));
    assertEquals(keys.get(0), keys.get(2));
    assertEquals("{\"json\":{\"n\":\"ü\"}}", bodies.get(0));
    assertEquals(bodies.get(0), bodies.get(2));
  }

  @Test
  void everyOperationIsReachedByAMethodOfTheClient() throws Exception {
    var compiled = Path.of(MessagesApi.class.getResource("").toURI());
    var reached =
        Arrays.stream(EscrowMQ.class.getMethods())
            .map(method -> method.getReturnType().getSimpleName() + ".class")
            .collect(Collectors.toSet());

    try (var files = Files.list(compiled)) {
      var groups = files.map(file -> file.getFileName().toString());
      var unreached = groups.filter(file -> file.endsWith("Api.class") && !reached.contains(file));
      assertEquals(List.of(), unreached.toList());
    }
  }

  @Test
  void aBodyOfNullIsSent() throws IOException {
    client(SOON, new Answer(201, RECEIPT)).send("orders", Messages.json(null));

    assertEquals("{\"json\":null}", bodies.get(0));
  }

  @Test
  void theMessageOfAProblemExceptionNamesItsFields() {
    var key = new FieldError().pointer("/message/key").detail("must be without spaces");
    var tag = new FieldError().pointer("/message/tag").detail("is too long");

    assertEquals("c: why", message("why"));
    assertEquals("c: /message/key: must be without spaces", message(key.getDetail(), key));
    assertEquals(
        "c: 2 fields; /message/key: must be without spaces; /message/tag: is too long",
        message("2 fields", key, tag));
    assertEquals("c: /message/key is bad", message("/message/key is bad", key));
  }

  private static String message(String detail, FieldError... fields) {
    var problem = new Problem().code("c").detail(detail).errors(List.of(fields));
    return new ProblemException(problem).getMessage();
  }

  @Test
  void aProblemWithAnUnknownCodeIsAProblemExceptionAndIsNotRepeated() throws IOException {
    var problem = "{\"code\":\"brand_new\",\"detail\":\"why\",\"status\":409,\"retryable\":false}";
    var client = client(SOON, new Answer(409, problem));

    var refused =
        assertThrows(ProblemException.class, () -> client.send("orders", Messages.text("x")));

    assertTrue(refused.is("other", "brand_new"));
    assertEquals(409, refused.status());
    assertFalse(refused.isRetryable());
    assertEquals(Optional.empty(), refused.retryAfter());
    assertEquals(1, bodies.size());
  }

  @Test
  void aReplyThatDidNotComeInTimeIsNotAskedForAgain() throws IOException {
    var problem = "{\"code\":\"reply_timeout\",\"status\":504,\"retryable\":true}";
    var client = client(SOON, new Answer(504, problem));

    var refused =
        assertThrows(ProblemException.class, () -> client.send("orders", Messages.text("x")));

    assertTrue(refused.is("reply_timeout"));
    assertEquals(1, bodies.size());
  }

  @Test
  void aBeginWithoutAnAnswerIsNotRolledBack() throws IOException {
    var client = client(Retry.NONE, new Answer(503, "away"));

    assertThrows(
        ProblemException.class,
        () ->
            client.transaction(
                "shop", TxOptions.id("t"), tx -> tx.add("orders", Messages.text("x")).begin()));

    assertEquals(1, bodies.size());
  }

  @Test
  void aGatewayThatGotNoAnswerIsAskedAgain() throws IOException {
    var client = client(SOON, new Answer(502, "<html>"), new Answer(504, ""),
        new Answer(201, RECEIPT));

    client.send("orders", Messages.text("x"));

    assertEquals(3, bodies.size());
  }

  @Test
  void anAnswerOfAProxyIsAnException() throws IOException {
    var client = client(Retry.NONE, new Answer(500, "<html>"), new Answer(200, "<html>"),
        new Answer(200, ""));
    var message = Messages.text("x");

    var refused = assertThrows(ProblemException.class, () -> client.send("orders", message));
    assertTrue(refused.is("not_a_problem_document"));
    assertThrows(ApiException.class, () -> client.send("orders", message));
    assertThrows(ApiException.class, () -> client.send("orders", message));
  }

  @Test
  void aRequestWithoutAnAnswerIsAnException() {
    var client = EscrowMQ.builder("http://127.0.0.1:1").retry(Retry.NONE).build();

    assertThrows(ApiException.class, () -> client.send("orders", Messages.text("x")));
  }

  @Test
  void anEntryOfABatchThatIsRefusedIsAnException() throws IOException {
    var answer =
        """
        {"accepted": 1, "rejected": 1, "results": [{"status": 200}, {"status": 409, "problem":
          {"code": "lease_expired", "status": 409, "retryable": false, "detail": "late"}}]}""";
    var client = client(SOON, new Answer(207, answer));

    var refused =
        assertThrows(
            RefusedException.class, () -> client.consume().ackMessages("g", new AckInput()));

    assertEquals(1, refused.accepted());
    assertEquals(List.of(1), List.copyOf(refused.refused().keySet()));
    assertTrue(refused.refused().get(1).is("lease_expired"));
    assertEquals(2, refused.answer(BatchSendResult.class).getResults().size());
  }

  @Test
  void theDelayGrowsToItsLimitAndIsNeverShorterThanTheServiceAsks() {
    var minute = Duration.ofMinutes(1);
    var zero = Duration.ZERO;
    var retry = new Retry(minute, Duration.ofMillis(100), Duration.ofSeconds(5));

    assertEquals(Optional.of(Duration.ofMillis(50)), retry.delay(1, zero, zero, 0.5));
    assertEquals(Optional.of(Duration.ofMillis(100)), retry.delay(2, zero, zero, 0.5));
    assertEquals(Optional.of(Duration.ofMillis(2500)), retry.delay(5000, zero, zero, 0.5));
    var second = Duration.ofSeconds(1);
    assertEquals(Optional.of(second), retry.delay(1, zero, second, 0.5));
    assertEquals(Optional.empty(), retry.delay(1, minute.minus(second), second.plus(second), 0));
    assertEquals(Optional.empty(), retry.delay(1, minute, zero, 0));
  }

  @Test
  void aCommitThatCannotBeSentIsPendingAndOneThatIsRefusedIsAProblem() throws IOException {
    var away = client(Retry.NONE, new Answer(201, BEGUN), new Answer(503, "away"));
    EscrowMQ.TxWork<RuntimeException> work = tx -> tx.add("orders", Messages.text("x"));

    var pending =
        assertThrows(
            CommitPendingException.class, () -> away.transaction("shop", TxOptions.id("t"), work));
    assertEquals("t", pending.transactionId());

    var resolved = "{\"code\":\"transaction_already_resolved\",\"status\":409,\"retryable\":false}";
    var late = client(Retry.NONE, new Answer(201, BEGUN), new Answer(409, resolved));
    var refused =
        assertThrows(
            ProblemException.class, () -> late.transaction("shop", TxOptions.newId(), work));
    assertTrue(refused.is("transaction_already_resolved"));
  }

  @Test
  void aDecisionIsSentFromAThreadThatWasInterrupted() throws IOException {
    var client = client(Retry.NONE, new Answer(201, BEGUN), new Answer(503, "{}"));

    try {
      assertThrows(
          CommitPendingException.class,
          () ->
              client.transaction(
                  "shop",
                  TxOptions.id("t"),
                  tx -> {
                    tx.add("orders", Messages.text("x")).begin();
                    Thread.currentThread().interrupt();
                  }));
      assertTrue(Thread.currentThread().isInterrupted());
    } finally {
      Thread.interrupted();
    }

    assertEquals(2, bodies.size());
  }

  @Test
  void aBeginThatFailedIsDecidedByTheCheckAlone() {
    assertEquals(Tx.Step.SEND_NOTHING, Tx.State.OVER.succeeded);
    assertEquals(Tx.Step.SEND_NOTHING, Tx.State.OVER.failed);
    for (var state : Tx.State.values()) {
      assertTrue(state == Tx.State.COMMITTED || state.failed != Tx.Step.SEND_COMMIT);
    }
  }

  // Source: the vectors of the Standard Webhooks reference libraries.
  @Test
  void aSignatureIsVerifiedOverTheRawBody() {
    var secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    var at = Instant.ofEpochSecond(1614265330);
    var headers =
        Map.of(
            "webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "webhook-timestamp", "1614265330",
            "webhook-signature", "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    var body = "{\"test\": 2432232314}".getBytes(StandardCharsets.UTF_8);
    var other = "whsec_" + Base64.getEncoder().encodeToString(new byte[32]);

    var id = Webhooks.verify(List.of(other, secret), headers::get, body, at);

    assertEquals(headers.get("webhook-id"), id);
    assertRefused(secret, headers, new byte[1], at);
    assertRefused(other, headers, body, at);
    var late = at.plus(Webhooks.TOLERANCE).plusSeconds(1);
    assertRefused(secret, headers, body, late);
    assertRefused(secret, Map.of(), body, at);
  }

  private static void assertRefused(
      String secret, Map<String, String> headers, byte[] body, Instant at) {
    assertThrows(
        InvalidSignatureException.class,
        () -> Webhooks.verify(List.of(secret), headers::get, body, at));
  }

  @Test
  void aHandlerIsNotReachedWithoutASignature() {
    var secret = "whsec_" + Base64.getEncoder().encodeToString(new byte[32]);
    var handler = new CheckHandler(() -> List.of(secret), id -> Decision.COMMIT);
    var body = "{\"transaction_id\":\"t\"}".getBytes(StandardCharsets.UTF_8);

    assertEquals(401, handler.answer(name -> null, body).status());
  }

  @Test
  void aHandlerIsInterruptedWhenItsLeaseEndsWhileTheServiceIsAway() throws IOException {
    var group =
        """
        {"group": "g", "topics": [], "start": "earliest", "lease_ms": 300, "max_attempts": 3,
         "backoff_ms": [], "dead_letter": true, "ordered": false, "revision": 1,
         "created_at": "2026-11-24T00:00:00Z"}""";
    var messages =
        """
        {"server_time": "2026-11-24T00:00:00Z", "messages": [{"message_id": "m", "topic": "t",
          "queue_id": 0, "queue_offset": 0, "payload": "x", "attempt": 1, "receipt_handle": "h",
          "lease_expires_at": "2026-11-24T00:00:00.300Z"}]}""";
    var client =
        client(
            Retry.within(Duration.ofSeconds(5)),
            new Answer(200, group), new Answer(200, messages), new Answer(503, "away"));
    var worker = new AtomicReference<Worker>();
    var lostAfter = new AtomicReference<Duration>();
    worker.set(
        Worker.builder(
                client,
                "g",
                delivery -> {
                  var begun = System.nanoTime();
                  try {
                    Thread.sleep(4000);
                  } finally {
                    worker.get().stop();
                    if (delivery.isLost()) {
                      lostAfter.set(Duration.ofNanos(System.nanoTime() - begun));
                    }
                  }
                })
            .concurrency(1)
            .build());

    worker.get().run();

    assertNotNull(lostAfter.get());
    assertTrue(lostAfter.get().toMillis() < 2000, lostAfter.toString());
    assertEquals(new Worker.Stats(0, 0, 1), worker.get().stats());
  }

  /** Keeps the lines that a class logs, until it is closed. */
  private static final class Lines extends Handler implements AutoCloseable {
    final BlockingQueue<LogRecord> written = new LinkedBlockingQueue<>();
    private final Logger logger;

    Lines(Class<?> of) {
      logger = Logger.getLogger(of.getName());
      logger.addHandler(this);
    }

    /** Returns the next line, which is written in a time in which no call has given up. */
    String next() throws InterruptedException {
      var line = written.poll(10, TimeUnit.SECONDS);
      return line == null ? "nothing" : line.getLevel() + " " + line.getMessage();
    }

    @Override
    public void publish(LogRecord line) {
      written.add(line);
    }

    @Override
    public void flush() {}

    @Override
    public void close() {
      logger.removeHandler(this);
    }
  }

  private static void assertOutage(Lines log, Runnable run, AutoCloseable stopped)
      throws Exception {
    var running = new Thread(run);
    try (log;
        stopped) {
      running.start();
      var first = log.next();
      var second = log.next();

      assertTrue(first.startsWith("SEVERE the service cannot be reached by"), first);
      assertTrue(second.startsWith("INFO the service answers"), second);
    }
    running.join(10_000);
    assertEquals(0, log.written.size());
  }

  @Test
  void aWorkerLogsAnOutageAtItsFirstFailedTryAndItsEnd() throws Exception {
    var group =
        """
        {"group": "g", "topics": [], "start": "earliest", "lease_ms": 300, "max_attempts": 3,
         "backoff_ms": [], "dead_letter": true, "ordered": false, "revision": 1,
         "created_at": "2026-11-24T00:00:00Z"}""";
    var none = "{\"server_time\": \"2026-11-24T00:00:00Z\", \"messages\": []}";
    var away = new Answer(503, "away");
    var client =
        client(Retry.DEFAULT, away, away, away, new Answer(200, group), new Answer(200, none));
    var worker = Worker.builder(client, "g", delivery -> {}).build();

    assertOutage(new Lines(Worker.class), worker::run, worker);
  }

  @Test
  void aCheckerLogsAnOutageAtItsFirstFailedTryAndItsEnd() throws Exception {
    var away = new Answer(503, "away");
    var found = new Answer(200, "{}");
    var none = new Answer(200, "{\"checks\": []}");
    var client = client(Retry.DEFAULT, found, away, away, away, none);
    var checker = new Checker(client, "shop", id -> Decision.COMMIT);

    assertOutage(new Lines(Checker.class), checker::run, checker);

    assertTrue(bodies.get(1).contains("\"wait_ms\":20000"), bodies.get(1));
    assertTrue(bodies.get(4).contains("\"wait_ms\":0"), bodies.get(4)); // to notice its end
  }

  @Test
  void aCheckerWarnsOfAProducerGroupThatDoesNotExistAndOfAnAnswerThatFails() throws Exception {
    var unknown = "{\"code\":\"producer_group_not_found\",\"status\":404,\"retryable\":false}";
    var check = "{\"checks\": [{\"check_id\": \"c\", \"transaction_id\": \"t\"}]}";
    var client =
        client(
            Retry.NONE,
            new Answer(404, unknown),
            new Answer(200, check),
            new Answer(200, "{\"accepted\": 1, \"rejected\": 0, \"results\": []}"),
            new Answer(200, "{\"checks\": []}"));
    Outcomes away =
        id -> {
          throw new IllegalStateException("away");
        };
    try (var log = new Lines(Checker.class);
        var checker = new Checker(client, "shpo", away)) {
      checker.start();

      var first = log.next();
      var second = log.next();

      assertTrue(first.startsWith("WARNING the producer group {0} does not exist"), first);
      assertEquals("WARNING the check of t is answered unknown", second);
    }
  }

  private static final DataSource NO_DATABASE =
      (DataSource)
          Proxy.newProxyInstance(
              ClientTest.class.getClassLoader(),
              new Class<?>[] {DataSource.class},
              (proxy, method, arguments) -> {
                throw new SQLException("away");
              });

  @Test
  void workThatForgetsTheMarkIsAnExceptionAndPublishesNothing() throws IOException {
    var client = client(Retry.NONE, new Answer(503, "away"));
    var options = TxOptions.newId().markers(new Markers(Markers.Dialect.SQLITE), NO_DATABASE);

    assertThrows(
        NotMarkedException.class,
        () -> client.transaction("shop", options, tx -> tx.add("orders", Messages.text("x"))));

    assertEquals(0, bodies.size());
  }

  @Test
  void aBeginWithinAnOpenLocalTransactionGivesUpSoon() throws IOException {
    var client = client(Retry.DEFAULT, new Answer(503, "away"));
    var options = TxOptions.newId().markers(new Markers(Markers.Dialect.SQLITE), NO_DATABASE);
    var begun = System.nanoTime();

    assertThrows(
        ProblemException.class,
        () ->
            client.transaction(
                "shop", options, tx -> tx.add("orders", Messages.text("x")).mark(null)));

    assertTrue(System.nanoTime() - begun < Duration.ofSeconds(12).toNanos());
  }

  /** Handles one message until its handler is interrupted; returns the first line of the log. */
  private String interrupted(Duration maxLease, Duration shutdown) throws Exception {
    var group =
        """
        {"group": "g", "topics": [], "start": "earliest", "lease_ms": 300, "max_attempts": 3,
         "backoff_ms": [], "dead_letter": true, "ordered": false, "revision": 1,
         "created_at": "2026-11-24T00:00:00Z"}""";
    var messages =
        """
        {"server_time": "2026-11-24T00:00:00Z", "messages": [{"message_id": "m", "topic": "t",
          "queue_id": 0, "queue_offset": 0, "payload": "x", "attempt": 1, "receipt_handle": "h",
          "lease_expires_at": "2026-11-24T00:00:00.300Z"}]}""";
    var settled = "{\"accepted\": 1, \"rejected\": 0, \"results\": []}";
    var client =
        client(
            Retry.NONE,
            new Answer(200, group),
            new Answer(200, messages),
            new Answer(200, settled));
    var worker = new AtomicReference<Worker>();
    worker.set(
        Worker.builder(
                client,
                "g",
                delivery -> {
                  worker.get().stop();
                  Thread.sleep(20_000);
                })
            .concurrency(1)
            .maxLease(maxLease)
            .shutdown(shutdown)
            .build());
    try (var log = new Lines(Worker.class)) {
      worker.get().run();
      var line = log.next();
      assertEquals(0, log.written.size());
      return line;
    }
  }

  @Test
  void theLogSaysWhyAHandlerWasInterrupted() throws Exception {
    var second = Duration.ofSeconds(1);
    var held = interrupted(Duration.ofMillis(1), second.multipliedBy(20));
    var stopped = interrupted(second.multipliedBy(20), Duration.ofMillis(1));

    assertEquals("SEVERE the handler of {0} took longer than maxLease: its lease ends", held);
    assertEquals("WARNING {0} was rejected at the stop, and its attempt counts", stopped);
  }

  @Test
  void anExceptionWithoutAReadableMessageLeavesTheOtherMessagesToTheWorker() throws Exception {
    var group =
        """
        {"group": "g", "topics": [], "start": "earliest", "lease_ms": 60000, "max_attempts": 3,
         "backoff_ms": [], "dead_letter": true, "ordered": true, "revision": 1,
         "created_at": "2026-11-24T00:00:00Z"}""";
    var message =
        """
        {"message_id": "m", "topic": "t", "queue_id": 0, "queue_offset": 0, "payload": "x",
         "attempt": 1, "receipt_handle": "h", "lease_expires_at": "2026-11-24T00:01:00Z"}""";
    var messages =
        "{\"server_time\": \"2026-11-24T00:00:00Z\", \"messages\": ["
            + message
            + ", "
            + message
            + "]}";
    var settled = "{\"accepted\": 1, \"rejected\": 0, \"results\": []}";
    var client =
        client(
            Retry.NONE,
            new Answer(200, group),
            new Answer(200, messages),
            new Answer(200, settled));
    var running = new AtomicReference<Worker>();
    var worker =
        Worker.builder(
                client,
                "g",
                delivery -> {
                  running.get().stop();
                  throw new UnreadableException();
                })
            .concurrency(2)
            .shutdown(Duration.ofSeconds(5))
            .build();
    running.set(worker);

    worker.run();

    assertEquals(new Worker.Stats(0, 1, 0), worker.stats());
    assertTrue(bodies.get(2).contains("\"unprocessed\":true"), bodies.get(2));
  }

  private static final class UnreadableException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    @Override
    public String getMessage() {
      throw new IllegalStateException("no text");
    }
  }

  @Test
  void messagesOfAnOrderedGroupAreHandledByKeyOrQueue() {
    var deliveries =
        List.of(
            delivery("1", 0, "a"), delivery("2", 0, "b"), delivery("3", 0, "a"),
            delivery("4", 0, null), delivery("5", 1, null), delivery("6", 0, null));

    assertEquals(6, Worker.lines(deliveries, false).size());
    var ids = new ArrayList<String>();
    for (var line : Worker.lines(deliveries, true)) {
      ids.add(String.join("", line.stream().map(one -> one.message().getMessageId()).toList()));
    }
    assertEquals(List.of("13", "2", "46", "5"), ids);
  }

  private static Delivery delivery(String id, int queue, String key) {
    var message = new ReceivedMessage().messageId(id).topic("t").queueId(queue).orderingKey(key);
    return new Delivery(message, Duration.ofMinutes(1));
  }

  @Test
  void aNameThatIsNotOneOfATableIsRefused() {
    for (var name : List.of("a b", "a;b", "a.b.c", "1a", "a\"", "")) {
      assertThrows(
          IllegalArgumentException.class, () -> new Markers(Markers.Dialect.SQLITE, name), name);
    }
  }

  @Test
  void aReasonIsWithoutWhatTheServiceRefuses() {
    var lines = "no paper\n\tno ink\u007f\u0085\ud83d";
    assertEquals("no paper no ink \ufffd", Threads.reason(new EscrowMQException(lines)));
    assertEquals(
        "java.io.IOException: no paper no ink \ufffd", Threads.reason(new IOException(lines)));
    assertFalse(Threads.reason(new DeadLetterException(" \n")).isBlank());
  }

  @Test
  void aReasonIsNeverEmptyAndIsCutOnWholeCharacters() {
    assertEquals("😀".repeat(120), Threads.reason(new EscrowMQException("😀".repeat(200))));
    assertEquals("short", Threads.reason(new EscrowMQException("short")));
    assertEquals(
        "java.io.IOException: no paper", Threads.reason(new IOException("no paper")));
    assertFalse(Threads.reason(new DeadLetterException("")).isEmpty());
  }
}
