package dev.escrowmq.client;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.atomic.AtomicInteger;

/** Threads for work that blocks. */
final class Threads {
  private static final int LONGEST_REASON = 120; // characters: at most 480 bytes of the 500

  private Threads() {}

  /** Makes an executor of virtual threads (Java 21 or later), or else of as many as needed. */
  static ExecutorService executor(String name) {
    try {
      var make = Executors.class.getMethod("newVirtualThreadPerTaskExecutor");
      return (ExecutorService) make.invoke(null);
    } catch (ReflectiveOperationException older) {
      return Executors.newCachedThreadPool(named(name));
    }
  }

  static ThreadFactory named(String name) {
    var count = new AtomicInteger();
    return task -> {
      var thread = new Thread(task, name + "-" + count.incrementAndGet());
      thread.setDaemon(true);
      return thread;
    };
  }

  /**
   * Returns what went wrong, on one line, within the limit of a reason, on whole characters: with
   * its class, unless the exception is one of this package, such as the one that gives a reason.
   */
  static String reason(Throwable failure) {
    var message = plain(failure.getMessage());
    var isOurs = failure instanceof EscrowMQException && !message.isEmpty();
    var text = isOurs ? message : plain(failure.toString());
    if (text.codePointCount(0, text.length()) <= LONGEST_REASON) {
      return text;
    }
    return text.substring(0, text.offsetByCodePoints(0, LONGEST_REASON));
  }

  /** Replaces what the service refuses: control characters, and halves of surrogate pairs. */
  private static String plain(String text) {
    if (text == null) {
      return "";
    }
    return text.replaceAll("\\p{Cc}+", " ").replaceAll("\\p{Cs}", "\uFFFD").strip();
  }
}
