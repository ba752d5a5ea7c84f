package dev.escrowmq.client;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import dev.escrowmq.client.invoker.Operations;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Flow;
import java.util.regex.Pattern;

/** The operation that a request is of: whether it may be repeated, and how long it may wait. */
final class Operation {
  private static final List<Pattern> SENT_ONCE = patterns(Operations.SENT_ONCE);
  private static final List<Pattern> RECEIVES =
      patterns(List.of("POST /v1/groups/{group}/receive"));
  private static final List<Pattern> REMOVING = patterns(Operations.REMOVING);
  private static final Pattern TRIES_ONLY = Pattern.compile("(?:^|&)dry_run=true(?:&|$)");
  private static final Pattern WAITS_BY_QUERY = Pattern.compile("(?:^|&)wait_ms=(\\d{1,8})(?:&|$)");
  private static final Pattern WAITS_BY_HEADER = Pattern.compile("(?:^|[,; ])wait=(\\d{1,5})\\b");

  private final HttpRequest request;
  private final String name;

  /**
   * Takes a request that was made for this address.
   *
   * @throws IllegalArgumentException if an id in its path would lead to another resource
   */
  Operation(URI address, HttpRequest request) {
    this.request = request;
    var path = request.uri().getRawPath().substring(address.getRawPath().length());
    // Proxies and servers resolve "." and "..", also encoded.
    var parts = Arrays.asList(path.substring(1).split("/", -1));
    if (parts.contains("") || parts.contains(".") || parts.contains("..")) {
      throw new IllegalArgumentException("an id cannot be empty, . or .. in the path " + path);
    }
    name = request.method() + " " + path;
  }

  private static List<Pattern> patterns(List<String> operations) {
    return operations.stream()
        .map(one -> Pattern.compile(one.replaceAll("\\{\\w+}", "[^/]+")))
        .toList();
  }

  private boolean isOneOf(List<Pattern> operations) {
    return operations.stream().anyMatch(one -> one.matcher(name).matches());
  }

  /** Does the operation act once more each time? */
  boolean isOnce() {
    return isOneOf(SENT_ONCE);
  }

  /** Does it remove something, and have no other result? */
  boolean onlyRemoves() {
    var query = request.uri().getRawQuery();
    return isOneOf(REMOVING) && !TRIES_ONLY.matcher(query == null ? "" : query).find();
  }

  /**
   * Returns the request with what makes it repeatable, an Idempotency-Key or an attempt_id, and
   * with the time for a try: that of the client, and that which the service is asked to wait.
   */
  HttpRequest repeatable() {
    var isPost = request.method().equals("POST");
    var builder = HttpRequest.newBuilder(request, (header, value) -> true);
    if (isPost && !isOnce() && request.headers().firstValue("Idempotency-Key").isEmpty()) {
      builder.header("Idempotency-Key", UUID.randomUUID().toString()); // ignored where not taken
    }
    var body = body();
    if (body != null && isOneOf(RECEIVES) && !body.has("attempt_id")) {
      body.put("attempt_id", UUID.randomUUID().toString());
      builder.method("POST", HttpRequest.BodyPublishers.ofByteArray(bytes(body)));
    }
    request.timeout().ifPresent(limit -> builder.timeout(limit.plus(wait(body))));
    return builder.build();
  }

  private Duration wait(JsonNode body) {
    var query = request.uri().getRawQuery();
    var asked = WAITS_BY_QUERY.matcher(query == null ? "" : query);
    if (asked.find()) {
      return Duration.ofMillis(Long.parseLong(asked.group(1)));
    }
    var preferred = WAITS_BY_HEADER.matcher(request.headers().firstValue("Prefer").orElse(""));
    if (preferred.find()) {
      return Duration.ofSeconds(Long.parseLong(preferred.group(1)));
    }
    return Duration.ofMillis(body == null ? 0 : Math.max(0, body.path("wait_ms").asLong()));
  }

  /** Returns the body, if it is JSON with fields of which this class knows; otherwise null. */
  private ObjectNode body() {
    var publisher = request.bodyPublisher().orElse(null);
    var type = request.headers().firstValue("Content-Type").orElse("");
    if (publisher == null || publisher.contentLength() <= 0 || !type.contains("/json")) {
      return null;
    }
    var collected = collected(publisher);
    var isOfInterest =
        isOneOf(RECEIVES)
            || new String(collected, StandardCharsets.ISO_8859_1).contains("\"wait_ms\"");
    var found = isOfInterest ? Json.readOrNull(collected, JsonNode.class) : null;
    return found instanceof ObjectNode ? (ObjectNode) found : null;
  }

  private static byte[] bytes(JsonNode body) {
    try {
      return Json.MAPPER.writeValueAsBytes(body);
    } catch (JsonProcessingException impossible) {
      throw new IllegalStateException(impossible);
    }
  }

  /** Returns what the publisher sends; it is in memory. */
  private static byte[] collected(HttpRequest.BodyPublisher publisher) {
    var whole = HttpResponse.BodySubscribers.ofByteArray();
    publisher.subscribe(
        new Flow.Subscriber<ByteBuffer>() {
          @Override
          public void onSubscribe(Flow.Subscription subscription) {
            whole.onSubscribe(subscription);
          }

          @Override
          public void onNext(ByteBuffer part) {
            whole.onNext(List.of(part));
          }

          @Override
          public void onError(Throwable failure) {
            whole.onError(failure);
          }

          @Override
          public void onComplete() {
            whole.onComplete();
          }
        });
    return whole.getBody().toCompletableFuture().join();
  }
}
