package dev.escrowmq.client;

import dev.escrowmq.client.model.FieldError;
import dev.escrowmq.client.model.Problem;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Optional;

/**
 * The service's refusal of a request (RFC 9457). Its message names the fields that were refused.
 *
 * <p>Go by {@link #status} and {@link #isRetryable} for a {@link #code} that your program does not
 * know: a later service may have more codes.
 */
public final class ProblemException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  private final transient Problem problem;

  ProblemException(Problem problem) {
    super(problem.getCode() + ": " + text(problem));
    this.problem = problem;
  }

  private static String text(Problem problem) {
    var detail = String.valueOf(problem.getDetail());
    var same = new ArrayList<String>(); // the fields of which the detail speaks
    var others = new StringBuilder();
    for (var field : Objects.requireNonNullElse(problem.getErrors(), List.<FieldError>of())) {
      if (detail.contains(field.getPointer())) {
        continue; // which is named already
      }
      if (detail.equals(field.getDetail())) {
        same.add(field.getPointer());
      } else {
        others.append("; ").append(field.getPointer()).append(": ").append(field.getDetail());
      }
    }
    return (same.isEmpty() ? "" : String.join(", ", same) + ": ") + detail + others;
  }

  /** Returns the whole problem document. */
  public Problem problem() {
    return problem;
  }

  /** Returns what the refusal is, for example {@code topic_not_found}. */
  public String code() {
    return problem.getCode();
  }

  /** Returns the HTTP status. */
  public int status() {
    return problem.getStatus();
  }

  /** Reports whether the same request may be accepted later. */
  public boolean isRetryable() {
    return Boolean.TRUE.equals(problem.getRetryable());
  }

  /** Returns how long the service asks to wait before the next try. */
  public Optional<Duration> retryAfter() {
    return Optional.ofNullable(problem.getRetryAfterMs()).map(Duration::ofMillis);
  }

  /** Reports whether the code is one of these. */
  public boolean is(String... codes) {
    return List.of(codes).contains(code());
  }
}
