package dev.escrowmq.client;

import dev.escrowmq.client.invoker.ApiException;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;

/**
 * Logs the first failed try of the requests of a worker or checker, further ones every 30 seconds
 * while the service is away, and its end.
 */
final class Outage {
  // Between two reports, so that a service that comes and goes floods no log.
  private static final Duration QUIET = Duration.ofSeconds(30);
  private static final Duration PATIENCE = Duration.ofSeconds(20); // of one receive

  private final System.Logger log;
  private final String whose;
  private Long begun; // by System.nanoTime; null while the service answers
  private Long logged;
  private boolean isLogged;

  Outage(System.Logger log, String whose) {
    this.log = log;
    this.whose = whose;
  }

  /** Takes why a try failed. */
  synchronized void failed(Throwable why) {
    var now = System.nanoTime();
    begun = begun == null ? now : begun;
    if (logged == null || now - logged >= QUIET.toNanos()) {
      logged = now;
      isLogged = true;
      log.log(Level.ERROR, "the service cannot be reached by " + whose, why);
    }
  }

  /** Notes that the service has answered. */
  synchronized void ended() {
    if (isLogged) {
      var away = Duration.ofNanos(System.nanoTime() - begun).toMillis();
      log.log(Level.INFO, "the service answers " + whose + " again, after " + away + " ms");
    }
    begun = null;
    isLogged = false;
  }

  /** Returns how long a receive waits: not at all in an outage, to notice its end at once. */
  synchronized Duration patience() {
    return begun == null ? PATIENCE : Duration.ZERO;
  }

  /**
   * Returns what {@code once}, which repeats no request, returns, and calls it again while the
   * service is away, with growing pauses. Returns null when it is stopped.
   *
   * @throws ProblemException if the service refuses for good
   */
  <T> T repeat(BooleanSupplier isStopped, Supplier<T> once) {
    for (int tries = 1; !isStopped.getAsBoolean(); tries++) {
      try {
        return once.get();
      } catch (ProblemException | ApiException failure) {
        if (failure instanceof ProblemException refused && !refused.isRetryable()) {
          throw refused;
        }
        if (isStopped.getAsBoolean()) {
          return null;
        }
        failed(failure);
        pause(tries, failure);
      }
    }
    return null;
  }

  private static void pause(int tries, RuntimeException failure) {
    var asked = Duration.ZERO;
    if (failure instanceof ProblemException refused) {
      asked = refused.retryAfter().orElse(asked);
    }
    var random = ThreadLocalRandom.current().nextDouble();
    var wait = Retry.DEFAULT.delay(tries, Duration.ZERO, asked, random).orElse(asked);
    try {
      Thread.sleep(wait.toMillis());
    } catch (InterruptedException stop) {
      Thread.currentThread().interrupt();
    }
  }
}
