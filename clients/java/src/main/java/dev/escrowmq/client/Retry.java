package dev.escrowmq.client;

import java.time.Duration;
import java.util.Optional;

/**
 * The one rule of when a request is sent again.
 *
 * <p>A request without an answer, one that was answered 429 or 503 (by a proxy, 502 or 504, too),
 * and one whose problem says that it is retryable, is sent again, after the longer of the service's
 * Retry-After and a random part of a delay that doubles. An operation that takes an Idempotency-Key
 * has one that stays the same, a receive an attempt_id, so that the service carries it out once.
 * The operations of {@link dev.escrowmq.client.invoker.Operations#SENT_ONCE}, a rotation of a
 * secret for example, take none and act each time: they are sent again only where the service was
 * not reached, or says that it has done nothing. A request whose reply did not come in time
 * (reply_timeout) is not repeated. A change with If-Match that is refused with 412 when it is sent
 * again after a lost answer is a {@link ChangeUnknownException}. A removal that finds nothing when
 * it is sent again after a lost answer is done.
 *
 * <p>Of several addresses, a request goes on at the next one where a machine does not answer,
 * starts or stops. A replica answers not_primary, and leads to its service: at once, three times in
 * a row at most.
 *
 * @param total the time after which no try begins; zero sends each request once
 * @param first the longest delay before the second try; it doubles with each try
 * @param longest the limit of its growth
 */
public record Retry(Duration total, Duration first, Duration longest) {
  /** Tries for 30 seconds. */
  public static final Retry DEFAULT = within(Duration.ofSeconds(30));

  /** Sends each request once. */
  public static final Retry NONE = within(Duration.ZERO);

  /** Returns the default rule with another total. */
  public static Retry within(Duration total) {
    return new Retry(total, Duration.ofMillis(100), Duration.ofSeconds(5));
  }

  /**
   * Returns how long to wait before the next try, or nothing if there is none. {@code tries} counts
   * those that were made; {@code random} is in [0, 1).
   */
  Optional<Duration> delay(int tries, Duration spent, Duration asked, double random) {
    double grown = first.toNanos() * Math.pow(2, tries - 1);
    var part = Duration.ofNanos((long) (random * Math.min(grown, longest.toNanos())));
    var wait = asked.compareTo(part) > 0 ? asked : part;
    return spent.plus(wait).compareTo(total) < 0 ? Optional.of(wait) : Optional.empty();
  }
}
