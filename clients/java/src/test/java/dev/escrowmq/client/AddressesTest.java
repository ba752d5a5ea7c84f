package dev.escrowmq.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class AddressesTest {
  private static final Answer STORED =
      new Answer(
          201,
          """
          {"message_id": "msg_1", "topic": "orders", "stored_at": "2026-11-24T00:00:00Z",
           "durability": "synced", "deduplicated": false}""");
  private static final Retry SOON =
      new Retry(Duration.ofMinutes(1), Duration.ofNanos(1), Duration.ofNanos(1));

  private final List<Machine> machines = new ArrayList<>();

  private record Answer(int status, String body) {}

  /** Gives its answers one after another, and keeps the keys of the requests. */
  private static final class Machine {
    final List<String> keys = new ArrayList<>();
    final String url;
    volatile List<Answer> answers;
    final HttpServer server;

    Machine(Answer... answers) throws IOException {
      this.answers = List.of(answers);
      server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
      url = "http://127.0.0.1:" + server.getAddress().getPort();
      server.createContext(
          "/",
          exchange -> {
            exchange.getRequestBody().readAllBytes();
            keys.add(exchange.getRequestHeaders().getFirst("Idempotency-Key"));
            var answer = this.answers.get(Math.min(keys.size(), this.answers.size()) - 1);
            var body = answer.body().getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.sendResponseHeaders(answer.status(), body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
          });
      server.start();
    }
  }

  private Machine machine(Answer... answers) throws IOException {
    var made = new Machine(answers);
    machines.add(made);
    return made;
  }

  @AfterEach
  void stopMachines() {
    machines.forEach(machine -> machine.server.stop(0));
  }

  private static Answer refusal(int status, String code, String context) {
    return new Answer(
        status,
        "{\"code\":\"" + code + "\",\"status\":" + status + ",\"context\":{" + context + "}}");
  }

  private static Answer leadsTo(String url) {
    return refusal(421, "not_primary", url.isEmpty() ? "" : "\"primary\":\"" + url + "\"");
  }

  private static EscrowMQ client(Retry retry, String... urls) {
    return EscrowMQ.builder(String.join(", ", urls)).retry(retry).build();
  }

  private static void send(EscrowMQ client) {
    assertEquals("msg_1", client.send("orders", Messages.text("x")).getMessageId());
  }

  @Test
  void aReplicaLeadsToItsServiceWithTheSameKeyAndTheNextRequestGoesThereAtOnce()
      throws IOException {
    var service = machine(STORED);
    var replica = machine(leadsTo(service.url + "/"));
    var client = client(SOON, replica.url);

    send(client);
    send(client);

    assertEquals(1, replica.keys.size());
    assertEquals(2, service.keys.size());
    assertNotNull(replica.keys.get(0));
    assertEquals(replica.keys.get(0), service.keys.get(0));
  }

  @Test
  void aMachineThatIsGoneStartsOrKnowsNoServiceIsLeftForTheNext() throws IOException {
    var answers =
        List.of(
            refusal(503, "recovering", ""), leadsTo(""), new Answer(502, "no answer for a proxy"));
    for (var answer : answers) {
      var first = machine(answer);
      var service = machine(STORED);
      send(client(SOON, first.url, service.url));
      assertEquals(1, first.keys.size(), answer.body());
      assertEquals(1, service.keys.size());
    }
    var gone = machine(STORED);
    gone.server.stop(0);
    var service = machine(STORED);
    send(client(SOON, gone.url, service.url));
    assertEquals(1, service.keys.size());
  }

  @Test
  void aServiceThatIsBusyIsNotLeft() throws IOException {
    var busy = machine(refusal(503, "overloaded", ""), STORED);
    var other = machine(STORED);

    send(client(SOON, busy.url, other.url));

    assertEquals(2, busy.keys.size());
    assertTrue(other.keys.isEmpty());
  }

  @Test
  void replicasThatLeadInACircleAreAskedWithPauses() throws IOException {
    var one = machine(STORED);
    var other = machine(leadsTo(one.url));
    one.answers = List.of(leadsTo(other.url));
    var client = client(Retry.NONE, one.url);

    var refused =
        assertThrows(ProblemException.class, () -> client.send("orders", Messages.text("x")));

    assertTrue(refused.is("not_primary"));
    assertTrue(refused.isRetryable()); // a worker goes on: there may be a service later
    assertEquals(2, one.keys.size());
    assertEquals(2, other.keys.size());
  }

  @Test
  void anotherRefusalWith421IsAnAnswer() throws IOException {
    var service = machine(STORED);
    var asked = machine(refusal(421, "host_not_allowed", "\"primary\":\"" + service.url + "\""));
    var client = client(SOON, asked.url);

    assertThrows(ProblemException.class, () -> client.send("orders", Messages.text("x")));

    assertEquals(1, asked.keys.size());
    assertTrue(service.keys.isEmpty());
  }

  @Test
  void aKeyIsNotSentWithoutTlsBecauseAReplicaSaysSo() {
    var secret = URI.create("https://shop-1");
    var plain = URI.create("http://shop-1");
    assertNull(Addresses.allowed("http://shop-2", secret));
    for (var none : List.of("", "shop-2", "ftp://shop-2", "http://", "http://a b", "http://b/x")) {
      assertNull(Addresses.allowed(none, plain), none);
    }
    assertNull(Addresses.allowed(null, plain));
    assertNotNull(Addresses.allowed("https://shop-2", plain));
    assertNotNull(Addresses.allowed("http://shop-2/", plain));
    assertNotNull(Addresses.allowed("https://shop-2:8443", secret));
  }

  @Test
  void addressesThatAreNoneAreRefused() {
    var two = "http://a/x,http://b";
    for (var none : List.of("", " , ", "shop:8080", "ftp://a", "http://", "http://a,b", two)) {
      assertThrows(IllegalArgumentException.class, () -> EscrowMQ.at(none), none);
    }
    assertNotNull(EscrowMQ.at("http://a/x, http://b/x/"));
  }

  @Test
  void aRequestKeepsItsPathAndQuery() {
    var request = URI.create("http://a:1/x/v1/topics/a%2Fb?after=%20");
    assertEquals(
        "https://b/x/v1/topics/a%2Fb?after=%20",
        Addresses.of(request, URI.create("https://b/x")).toString());
  }

  @Test
  void theWaitGrowsWhenEveryAddressHasFailedOnceMore() {
    var three = new Addresses("http://a,http://b,http://c");
    var rounds = List.of(1, 2, 3, 4, 6, 7).stream().map(three::rounds).toList();
    assertEquals(List.of(1, 1, 1, 2, 2, 3), rounds);
    assertEquals(7, new Addresses("http://a").rounds(7));
  }
}
