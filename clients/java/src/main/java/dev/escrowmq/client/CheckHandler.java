package dev.escrowmq.client;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.sun.net.httpserver.HttpHandler;
import dev.escrowmq.client.model.CheckAnswer;
import dev.escrowmq.client.model.CheckQuestion;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.List;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/**
 * Answers the checks that a service sends to a webhook.
 *
 * <p>The signature is verified over the raw body before anything of it is read; status 401 refuses
 * it. Only an answer of yours is status 200: after an exception the status is 500, and the service
 * asks again.
 */
public final class CheckHandler {
  /** The longest body of a check that is read. */
  public static final int LONGEST_BODY = 64 << 10;

  private static final System.Logger LOG = System.getLogger(CheckHandler.class.getName());

  private final Supplier<List<String>> secrets;
  private final Outcomes outcomes;

  /** Makes a handler; the secrets are asked for at each check, for a rotation without a restart. */
  public CheckHandler(Supplier<List<String>> secrets, Outcomes outcomes) {
    this.secrets = secrets;
    this.outcomes = outcomes;
  }

  /** What to send back. */
  public record Answer(int status, String contentType, byte[] body) {}

  /**
   * Answers the POST of a check, in any web framework.
   *
   * @param header returns a header by its name, or null: {@code request::getHeader}, for example
   * @param body the bytes as they came
   */
  public Answer answer(UnaryOperator<String> header, byte[] body) {
    try {
      Webhooks.verify(secrets.get(), header, body, Instant.now());
    } catch (InvalidSignatureException refused) {
      return text(401, refused.getMessage());
    } catch (RuntimeException failure) {
      LOG.log(Level.ERROR, "a check could not be verified", failure);
      return text(500, "no answer: see the log");
    }
    var check = Json.readOrNull(body, CheckQuestion.class);
    if (check == null || check.getTransactionId() == null) {
      return text(400, "the body is no check");
    }
    try {
      var decision = new CheckAnswer().decision(outcomes.of(check.getTransactionId()).word());
      return new Answer(200, "application/json", Json.MAPPER.writeValueAsBytes(decision));
    } catch (JsonProcessingException impossible) {
      throw new IllegalStateException(impossible);
    } catch (Exception failure) {
      if (failure instanceof InterruptedException) {
        Thread.currentThread().interrupt();
      }
      LOG.log(Level.ERROR, "the check of " + check.getTransactionId() + " failed", failure);
      return text(500, "no answer: see the log");
    }
  }

  /** Returns a handler for the HTTP server of the JDK. */
  public HttpHandler httpHandler() {
    return exchange -> {
      try (exchange) {
        var answer = text(405, "send a POST");
        if (exchange.getRequestMethod().equals("POST")) {
          var body = exchange.getRequestBody().readNBytes(LONGEST_BODY + 1);
          answer =
              body.length > LONGEST_BODY
                  ? text(413, "the body is too large")
                  : answer(exchange.getRequestHeaders()::getFirst, body);
        }
        exchange.getResponseHeaders().set("Content-Type", answer.contentType());
        exchange.sendResponseHeaders(answer.status(), answer.body().length);
        exchange.getResponseBody().write(answer.body());
      } catch (IOException gone) {
        LOG.log(Level.DEBUG, "the service did not wait for the answer", gone);
      }
    };
  }

  private static Answer text(int status, String text) {
    return new Answer(status, "text/plain", text.getBytes(StandardCharsets.UTF_8));
  }
}
