package dev.escrowmq.client;

import com.fasterxml.jackson.databind.JsonNode;
import dev.escrowmq.client.model.Problem;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.Authenticator;
import java.net.ConnectException;
import java.net.CookieHandler;
import java.net.ProxySelector;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.ThreadLocalRandom;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;

/**
 * Sends the requests of the generated classes: repeats them by {@link Retry}, and throws {@link
 * ProblemException} and {@link RefusedException} for refusals.
 */
final class RepeatingClient extends HttpClient {
  // A problem is small. What follows a megabyte is no problem of this service.
  private static final int LONGEST_PROBLEM = 1 << 20;

  private static final String NO_DOCUMENT = "not_a_problem_document";
  private static final String REVISION_MISMATCH = "revision_mismatch";

  // How often in a row a request goes at once where a replica leads it.
  private static final int MOST_HOPS = 3;

  private final HttpClient next;
  private final Addresses addresses;
  private final Retry retry;
  private final Outage outage;

  /** Reports each try to the outage, if it is not null. */
  RepeatingClient(HttpClient next, Addresses addresses, Retry retry, Outage outage) {
    this.next = next;
    this.addresses = addresses;
    this.retry = retry;
    this.outage = outage;
  }

  @Override
  public <T> HttpResponse<T> send(HttpRequest given, HttpResponse.BodyHandler<T> handler)
      throws IOException, InterruptedException {
    var operation = new Operation(addresses.first(), given);
    var request = operation.repeatable();
    long started = System.nanoTime();
    int hops = 0;
    Exception lost = null; // the answer of a try that may have had its effect
    for (int tries = 1; ; tries++) {
      HttpResponse<T> response = null;
      Problem problem = null;
      IOException failure = null;
      boolean isDone = false; // for all that is known
      var asked = addresses.now();
      try {
        response = watched(next.send(at(asked, request), handler), request);
        if (response.statusCode() < 400) {
          var accepted = accepted(response);
          note(null);
          return accepted;
        }
        problem = problem(response);
        isDone = !problem.getRetryable();
        refine(problem, response);
        if (isProxys(problem)) {
          lost = new ProblemException(problem);
        }
      } catch (IOException unanswered) {
        failure = unanswered;
        isDone = !isUnsent(unanswered);
        if (isDone) {
          lost = unanswered;
        }
      }
      addresses.note(asked, problem);
      if (problem != null && Addresses.isLed(problem) && hops < MOST_HOPS) {
        hops++;
        tries--;
        continue;
      }
      hops = 0;
      note(failure != null ? failure : isRepeated(problem) ? new ProblemException(problem) : null);
      var wanted = problem == null ? null : problem.getRetryAfterMs();
      var spent = Duration.ofNanos(System.nanoTime() - started);
      var random = ThreadLocalRandom.current().nextDouble();
      var asks = Duration.ofMillis(wanted == null ? 0 : wanted);
      var wait = retry.delay(addresses.rounds(tries), spent, asks, random);
      boolean isFinal = problem != null && !isRepeated(problem) || operation.isOnce() && isDone;
      if (wait.isEmpty() || isFinal) {
        if (failure != null) {
          throw failure;
        }
        var refusal = new ProblemException(problem);
        if (lost != null && operation.onlyRemoves() && isNothing(problem)) {
          return new Read<>(response, 204, new ByteArrayInputStream(new byte[0]));
        }
        if (lost != null && REVISION_MISMATCH.equals(refusal.code())) {
          throw new ChangeUnknownException(lost, refusal);
        }
        throw refusal;
      }
      Thread.sleep(wait.get().toMillis());
    }
  }

  private static HttpRequest at(URI address, HttpRequest request) {
    var place = Addresses.of(request.uri(), address);
    return HttpRequest.newBuilder(request, (name, value) -> true).uri(place).build();
  }

  /** Reports why a try failed, or with null that the service answered it. */
  private void note(Exception failure) {
    if (outage == null) {
      return;
    }
    if (failure == null) {
      outage.ended();
    } else {
      outage.failed(failure);
    }
  }

  /** Did a request fail before there was a connection to send it on? */
  private static boolean isUnsent(IOException failure) {
    return failure instanceof ConnectException || failure instanceof HttpConnectTimeoutException;
  }

  /** Does an answer without a problem document say that the service gave none? */
  private static boolean isProxys(Problem problem) {
    var status = problem.getStatus();
    return NO_DOCUMENT.equals(problem.getCode())
        && (status == 502 || status == 503 || status == 504);
  }

  /** Does the service say that what it was asked for does not exist? */
  private static boolean isNothing(Problem problem) {
    return problem.getStatus() == 404 && !NO_DOCUMENT.equals(problem.getCode());
  }

  private static boolean isRepeated(Problem problem) {
    return Boolean.TRUE.equals(problem.getRetryable())
        && !"reply_timeout".equals(problem.getCode());
  }

  /** Reads a refusal. It is retryable if the service says that it has carried nothing out. */
  private static Problem problem(HttpResponse<?> response) throws IOException {
    var problem = Json.readOrNull(bytes(response, LONGEST_PROBLEM), Problem.class);
    if (problem == null) {
      problem = new Problem();
    }
    var isReplica = Addresses.NOT_PRIMARY.equals(problem.getCode()); // the service may be found
    return problem.retryable(isReplica || Boolean.TRUE.equals(problem.getRetryable()));
  }

  /** Completes a refusal, so that it has a code also if it is a proxy's answer, for example. */
  private static void refine(Problem problem, HttpResponse<?> response) {
    var status = response.statusCode();
    var busy = status == 429 || status == 503;
    if (problem.getCode() == null) {
      busy |= status == 502 || status == 504; // of a proxy, which got no answer
      problem
          .code(NO_DOCUMENT)
          .detail("status " + status + " without a problem document");
    }
    problem.status(status).retryable(busy || problem.getRetryable());
    var seconds = response.headers().firstValue("Retry-After").orElse("");
    if (problem.getRetryAfterMs() == null && seconds.matches("\\d{1,9}")) {
      problem.retryAfterMs(Long.parseLong(seconds) * 1000);
    }
  }

  /** Returns the response with a body that ends where no further part of it comes. */
  @SuppressWarnings("unchecked") // an InputStream in the place of another
  private static <T> HttpResponse<T> watched(HttpResponse<T> response, HttpRequest request) {
    var limit = request.timeout();
    var type = response.headers().firstValue("Content-Type").orElse("");
    var isStream = type.startsWith("text/event-stream") || type.contains("ndjson");
    if (limit.isEmpty() || isStream || !(response.body() instanceof InputStream)) {
      return response;
    }
    return new Read<>(response, new PatientStream((InputStream) response.body(), limit.get()));
  }

  /** Reads an answer in JSON, so that one that breaks off is asked for again. */
  private static <T> HttpResponse<T> accepted(HttpResponse<T> response) throws IOException {
    var type = response.headers().firstValue("Content-Type").orElse("");
    var isPlain = response.headers().firstValue("Content-Encoding").isEmpty();
    if (!(response.body() instanceof InputStream) || !isPlain || !type.contains("/json")) {
      return response;
    }
    var document = bytes(response, Integer.MAX_VALUE);
    if (response.statusCode() == 207) {
      refuse(document);
    }
    if (!Charset.defaultCharset().equals(StandardCharsets.UTF_8)) {
      // The generated classes read text in the default charset.
      var text = Json.inAscii(new String(document, StandardCharsets.UTF_8));
      document = text.getBytes(StandardCharsets.US_ASCII);
    }
    return new Read<>(response, new ByteArrayInputStream(document));
  }

  private static void refuse(byte[] document) {
    var answer = Json.readOrNull(document, JsonNode.class);
    if (answer == null) {
      return; // what is no JSON fails in the generated class
    }
    var refused = new TreeMap<Integer, ProblemException>();
    var place = 0;
    for (var entry : answer.path("results")) {
      if (entry.has("problem")) {
        var problem = Json.MAPPER.convertValue(entry.get("problem"), Problem.class);
        refused.put(place, new ProblemException(problem));
      }
      place++;
    }
    if (!refused.isEmpty()) {
      throw new RefusedException(answer, refused);
    }
  }

  private static byte[] bytes(HttpResponse<?> response, int most) throws IOException {
    if (!(response.body() instanceof InputStream)) {
      return new byte[0];
    }
    try (var body = (InputStream) response.body()) {
      return body.readNBytes(most);
    }
  }

  /** A response with another body: one that has been read, for example. */
  private record Read<T>(HttpResponse<T> response, int statusCode, InputStream stream)
      implements HttpResponse<T> {
    Read(HttpResponse<T> response, InputStream stream) {
      this(response, response.statusCode(), stream);
    }

    @Override
    @SuppressWarnings("unchecked") // the body was an InputStream before
    public T body() {
      return (T) stream;
    }

    @Override
    public HttpRequest request() {
      return response.request();
    }

    @Override
    public Optional<HttpResponse<T>> previousResponse() {
      return response.previousResponse();
    }

    @Override
    public HttpHeaders headers() {
      return response.headers();
    }

    @Override
    public Optional<javax.net.ssl.SSLSession> sslSession() {
      return response.sslSession();
    }

    @Override
    public URI uri() {
      return response.uri();
    }

    @Override
    public Version version() {
      return response.version();
    }
  }

  @Override
  public <T> CompletableFuture<HttpResponse<T>> sendAsync(
      HttpRequest request, HttpResponse.BodyHandler<T> handler) {
    throw new UnsupportedOperationException("the generated classes wait for their answers");
  }

  @Override
  public <T> CompletableFuture<HttpResponse<T>> sendAsync(
      HttpRequest request,
      HttpResponse.BodyHandler<T> handler,
      HttpResponse.PushPromiseHandler<T> push) {
    return sendAsync(request, handler);
  }

  @Override
  public Optional<CookieHandler> cookieHandler() {
    return next.cookieHandler();
  }

  @Override
  public Optional<Duration> connectTimeout() {
    return next.connectTimeout();
  }

  @Override
  public Redirect followRedirects() {
    return next.followRedirects();
  }

  @Override
  public Optional<ProxySelector> proxy() {
    return next.proxy();
  }

  @Override
  public SSLContext sslContext() {
    return next.sslContext();
  }

  @Override
  public SSLParameters sslParameters() {
    return next.sslParameters();
  }

  @Override
  public Optional<Authenticator> authenticator() {
    return next.authenticator();
  }

  @Override
  public Version version() {
    return next.version();
  }

  @Override
  public Optional<Executor> executor() {
    return next.executor();
  }
}
