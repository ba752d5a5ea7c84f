package dev.escrowmq.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import dev.escrowmq.client.invoker.ApiException;
import dev.escrowmq.client.invoker.Operations;
import dev.escrowmq.client.model.GroupInput;
import dev.escrowmq.client.model.JoinInput;
import dev.escrowmq.client.model.ReceiveInput;
import dev.escrowmq.client.model.ResetInput;
import dev.escrowmq.client.model.TopicChanges;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class OnceTest {
  private static final Retry SOON =
      new Retry(Duration.ofMinutes(1), Duration.ofNanos(1), Duration.ofNanos(1));
  private static final String RECEIPT =
      """
      {"message_id": "msg_1", "topic": "orders", "stored_at": "2026-11-24T00:00:00Z",
       "durability": "synced", "deduplicated": false}""";
  private static final Map<String, Consumer<EscrowMQ>> CALLS =
      Map.of(
          "POST /v1/groups/{group}/members",
          client -> client.members().joinGroup("g", new JoinInput().clientId("c")),
          "POST /v1/groups/{group}/offsets/reset",
          client -> client.offsets().resetOffsets("g", new ResetInput().topic("orders")),
          "POST /v1/groups/{group}/rotate-secret",
          client -> client.groups().rotateGroupSigningSecret("g", null),
          "POST /v1/producer-groups/{producer_group}/rotate-secret",
          client -> client.checks().rotateSigningSecret("shop", null));

  private final List<AutoCloseable> open = new ArrayList<>();
  private final CountDownLatch over = new CountDownLatch(1);

  /** What a machine does with a request, by its number from 1. */
  @FunctionalInterface
  private interface Answering {
    void answer(int number, HttpExchange exchange) throws Exception;
  }

  /** Counts its requests and keeps their keys and bodies. */
  private final class Machine {
    final List<String> keys = new ArrayList<>();
    final List<String> bodies = new ArrayList<>();
    final String url;

    Machine(Answering answering) throws IOException {
      var server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
      var threads = Executors.newCachedThreadPool();
      server.setExecutor(threads);
      url = "http://127.0.0.1:" + server.getAddress().getPort();
      server.createContext(
          "/",
          exchange -> {
            keys.add(exchange.getRequestHeaders().getFirst("Idempotency-Key"));
            var sent = exchange.getRequestBody().readAllBytes();
            bodies.add(new String(sent, StandardCharsets.UTF_8));
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            try {
              answering.answer(bodies.size(), exchange);
            } catch (IOException failure) {
              throw failure;
            } catch (Exception failure) {
              throw new IOException(failure);
            }
            exchange.close();
          });
      server.start();
      open.add(() -> server.stop(0));
      open.add(threads::shutdownNow);
    }
  }

  private static void answer(HttpExchange exchange, int status, String body) throws IOException {
    var bytes = body.getBytes(StandardCharsets.UTF_8);
    exchange.sendResponseHeaders(status, bytes.length);
    exchange.getResponseBody().write(bytes);
  }

  private static String problem(int status, String code, boolean retryable) {
    return "{\"status\":" + status + ",\"code\":\"" + code + "\",\"retryable\":" + retryable + "}";
  }

  /** Returns the address of a machine that accepts connections, and answers nothing. */
  private String hung() throws IOException {
    var socket = new ServerSocket(0);
    open.add(socket);
    return "http://127.0.0.1:" + socket.getLocalPort();
  }

  private static EscrowMQ client(String url) {
    return EscrowMQ.builder(url).retry(SOON).build();
  }

  private static EscrowMQ client(String url, int limitMs) {
    return EscrowMQ.builder(url).retry(SOON).timeout(Duration.ofMillis(limitMs)).build();
  }

  @AfterEach
  void close() throws Exception {
    over.countDown();
    for (var one : open) {
      one.close();
    }
  }

  @Test
  void anOperationThatActsEachTimeIsNotRepeatedOnceItMayHaveActed() throws IOException {
    assertEquals(Set.copyOf(Operations.SENT_ONCE), CALLS.keySet());
    var lost =
        Map.<String, Answering>of(
            "no answer", (number, exchange) -> exchange.close(),
            "of a proxy", (number, exchange) -> answer(exchange, 502, "<html>"),
            "not known",
                (number, exchange) -> answer(exchange, 503, problem(503, "storage_failed", false)));
    for (var call : CALLS.entrySet()) {
      for (var one : lost.entrySet()) {
        var machine = new Machine(one.getValue());
        var client = client(machine.url);

        assertThrows(RuntimeException.class, () -> call.getValue().accept(client));

        assertEquals(1, machine.bodies.size(), call.getKey() + " " + one.getKey());
        assertNull(machine.keys.get(0));
      }
    }
  }

  /** Makes a change of the revision that is named, and loses its answer. */
  private static final class Revisions implements Answering {
    final Answering losing;
    int revision = 1;

    Revisions(Answering losing) {
      this.losing = losing;
    }

    @Override
    public void answer(int number, HttpExchange exchange) throws Exception {
      var wanted = exchange.getRequestHeaders().getFirst("If-Match");
      if (!wanted.equals("\"" + revision + "\"")) {
        OnceTest.answer(exchange, 412, problem(412, "revision_mismatch", false));
        return;
      }
      revision++; // the change is made
      losing.answer(number, exchange);
    }
  }

  @Test
  void aChangeOfARevisionWhoseAnswerWasLostIsUnknown() throws IOException {
    var lost =
        Map.<String, Answering>of(
            "no answer", (number, exchange) -> exchange.close(),
            "half of one", (number, exchange) -> exchange.sendResponseHeaders(200, 100),
            "of a proxy", (number, exchange) -> answer(exchange, 502, "<html>"));
    var changes =
        Map.<String, Consumer<EscrowMQ>>of(
            "topic",
            client -> client.topics().updateTopic("orders", "\"1\"", new TopicChanges().queues(9)),
            "group",
            client -> client.groups().putGroup("g", "\"1\"", new GroupInput()));
    for (var change : changes.values()) {
      for (var one : lost.entrySet()) {
        var revisions = new Revisions(one.getValue());
        var machine = new Machine(revisions);
        var client = client(machine.url);

        var unknown =
            assertThrows(ChangeUnknownException.class, () -> change.accept(client), one.getKey());
        var refused = assertThrows(ProblemException.class, () -> change.accept(client));

        assertEquals(412, unknown.refusal().status());
        assertNotNull(unknown.getCause());
        assertEquals("revision_mismatch", refused.code()); // the change of another one
        assertEquals(2, revisions.revision);
        assertEquals(3, machine.bodies.size());
      }
    }
  }

  private static final Map<String, Consumer<EscrowMQ>> REMOVALS =
      Map.of(
          "DELETE /v1/audit/reports/{report_id}",
          client -> client.audit().deleteAuditReport("rpt_1"),
          "DELETE /v1/groups/{group}",
          client -> client.groups().deleteGroup("g", null),
          "DELETE /v1/groups/{group}/members/{member_id}",
          client -> client.members().leaveGroup("g", "mem_1"),
          "DELETE /v1/names/nodes/{node}",
          client -> client.names().unregisterNode("node_1"),
          "DELETE /v1/topics/{topic}",
          client -> client.topics().deleteTopic("orders", null, false, false));

  @Test
  void aRemovalWhoseAnswerWasLostIsDoneIfItFindsNothingThen() throws IOException {
    var lost =
        Map.<String, Answering>of(
            "no answer", (number, exchange) -> exchange.close(),
            "of a proxy", (number, exchange) -> answer(exchange, 502, "<html>"));
    assertEquals(Set.copyOf(Operations.REMOVING), REMOVALS.keySet());
    for (var removal : REMOVALS.entrySet()) {
      for (var one : lost.entrySet()) {
        var machine =
            new Machine(
                (number, exchange) -> {
                  if (number == 1) {
                    one.getValue().answer(number, exchange);
                  } else {
                    answer(exchange, 404, problem(404, "topic_not_found", false));
                  }
                });
        var client = client(machine.url);

        removal.getValue().accept(client);
        var refused =
            assertThrows(ProblemException.class, () -> removal.getValue().accept(client));

        assertEquals("topic_not_found", refused.code(), removal.getKey() + " " + one.getKey());
        assertEquals(3, machine.bodies.size());
      }
    }
  }

  @Test
  void whatRemovesNothingOrHasLostNoAnswerIsRefusedAsItIs() throws IOException {
    var dryRun =
        (Consumer<EscrowMQ>) client -> client.topics().deleteTopic("orders", null, true, false);
    var removal = REMOVALS.get("DELETE /v1/topics/{topic}");
    var refusal = problem(404, "topic_not_found", false);
    refusedAsItIs(dryRun, (number, exchange) -> exchange.close(), refusal);
    refusedAsItIs(
        removal, (number, exchange) -> answer(exchange, 503, problem(503, "full", true)), refusal);
    refusedAsItIs(removal, (number, exchange) -> exchange.close(), "<html>"); // of a proxy
  }

  private void refusedAsItIs(Consumer<EscrowMQ> call, Answering first, String refusal)
      throws IOException {
    var machine =
        new Machine(
            (number, exchange) -> {
              if (number == 1) {
                first.answer(number, exchange);
              } else {
                answer(exchange, 404, refusal);
              }
            });
    var client = client(machine.url);

    var refused = assertThrows(ProblemException.class, () -> call.accept(client));

    assertEquals(404, refused.status());
    assertEquals(2, machine.bodies.size());
  }

  @Test
  void aChangeOfARevisionThatWasNeverSentBeforeIsRefusedAsItIs() throws IOException {
    var machine = new Machine(new Revisions((number, exchange) -> exchange.close()));
    var client = client("http://127.0.0.1:1," + machine.url);

    var refused =
        assertThrows(
            ProblemException.class,
            () -> client.topics().updateTopic("orders", "\"0\"", new TopicChanges()));

    assertEquals("revision_mismatch", refused.code());
  }

  @Test
  void anOperationThatActsEachTimeIsRepeatedWhereItHasNotActed() throws IOException {
    for (var call : CALLS.entrySet()) {
      var machine =
          new Machine(
              (number, exchange) -> {
                if (number == 1) {
                  answer(exchange, 503, problem(503, "overloaded", true));
                } else {
                  answer(exchange, 200, "{}");
                }
              });
      var gone = new ServerSocket(0);
      gone.close();

      var client = client("http://127.0.0.1:" + gone.getLocalPort() + "," + machine.url);
      call.getValue().accept(client);

      assertEquals(2, machine.bodies.size(), call.getKey());
    }
  }

  @Test
  void aReceiveThatIsRepeatedKeepsItsAttemptId() throws IOException {
    var machine =
        new Machine(
            (number, exchange) -> {
              if (number == 1) {
                exchange.close();
              } else {
                answer(exchange, 200, "{\"messages\":[]}");
              }
            });
    var client = client(machine.url);

    client.consume().receiveMessages("billing", new ReceiveInput().maxMessages(7));
    client.consume().receiveMessages("billing", new ReceiveInput().attemptId("mine"));

    var sent =
        machine.bodies.stream()
            .map(body -> Json.readOrNull(body.getBytes(StandardCharsets.UTF_8), JsonNode.class))
            .toList();
    assertEquals(7, sent.get(1).get("max_messages").asInt());
    assertNotNull(sent.get(0).get("attempt_id"));
    assertEquals(sent.get(0).get("attempt_id"), sent.get(1).get("attempt_id"));
    assertEquals("mine", sent.get(2).get("attempt_id").asText());
  }

  @Test
  void aMachineThatAcceptsAndNeverAnswersIsLeftForTheNext() throws IOException {
    var good = new Machine((number, exchange) -> answer(exchange, 201, RECEIPT));

    client(hung() + "," + good.url, 5000).send("orders", Messages.text("x"));

    assertEquals(1, good.bodies.size());
  }

  @Test
  void aTryWaitsLongerByTheTimeThatItsRequestAsksTheServiceToWait() throws IOException {
    var slow =
        new Machine(
            (number, exchange) -> {
              over.await(400, TimeUnit.MILLISECONDS);
              answer(exchange, 200, "{\"messages\":[]}");
            });
    var client = client(slow.url, 200);

    client.consume().receiveMessages("billing", new ReceiveInput().waitMs(2000L));
    client.transactions().getTransaction("t", 2000L, null);

    assertEquals(2, slow.bodies.size());
  }

  @Test
  void anAnswerMayTakeLongerThanATryWaitsAsLongAsPartsOfItCome() throws IOException {
    var slow =
        new Machine(
            (number, exchange) -> {
              exchange.sendResponseHeaders(201, 0);
              for (var part : RECEIPT.split("(?<=,)")) {
                exchange.getResponseBody().write(part.getBytes(StandardCharsets.UTF_8));
                exchange.getResponseBody().flush();
                over.await(400, TimeUnit.MILLISECONDS);
              }
            });

    client(slow.url, 1500).send("orders", Messages.text("x"));

    assertEquals(1, slow.bodies.size());
  }

  @Test
  void anAnswerThatDoesNotGoOnIsAskedForAgain() throws IOException {
    var machine =
        new Machine(
            (number, exchange) -> {
              if (number > 1) {
                answer(exchange, 201, RECEIPT);
                return;
              }
              exchange.sendResponseHeaders(201, 0);
              exchange.getResponseBody().write('{');
              exchange.getResponseBody().flush();
              over.await();
            });

    client(machine.url, 200).send("orders", Messages.text("x"));

    assertEquals(2, machine.bodies.size());
  }

  @Test
  void anIdThatWouldLeadToAnotherResourceIsRefusedBeforeARequest() throws IOException {
    var machine = new Machine((number, exchange) -> answer(exchange, 200, "{}"));
    var client = client(machine.url);

    for (var id : List.of("..", ".", "")) {
      assertThrows(
          IllegalArgumentException.class, () -> client.members().leaveGroup("billing", id));
      assertThrows(
          IllegalArgumentException.class, () -> client.deadLetters().purgeDeadLetters(id));
    }
    assertEquals(0, machine.bodies.size());
    client.members().leaveGroup("...", "a/../b");

    assertEquals(1, machine.bodies.size());
  }

  @Test
  void anApiKeyThatNoHeaderCanHaveIsRefusedAndNotShown() {
    for (var key : List.of("secret\nkey", "secret\r\n", "secret\u00fc")) {
      var refused =
          assertThrows(
              IllegalArgumentException.class,
              () -> EscrowMQ.builder("http://127.0.0.1:1").apiKey(key));
      assertFalse(refused.getMessage().contains("secret"));
    }
  }

  @Test
  void theExceptionOfASilentMachineSaysSo() throws IOException {
    var url = hung();
    var client =
        EscrowMQ.builder(url).retry(Retry.NONE).timeout(Duration.ofMillis(50)).build();

    var failed =
        assertThrows(ApiException.class, () -> client.send("orders", Messages.text("x")));

    assertTrue(failed.getCause() instanceof java.net.http.HttpTimeoutException);
  }
}
