package dev.escrowmq.client;

import dev.escrowmq.client.model.ReceivedMessage;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;

/** A message under a lease. */
public final class Delivery {
  /** Why the handler was interrupted, or not called. */
  enum End {
    LEASE_LOST,
    /** The lease was not extended any more, as its handler took longer than maxLease. */
    HELD_TOO_LONG,
    STOPPED,
  }

  /** What the handler threw, or null. */
  record Outcome(Throwable failure) {}

  static final Outcome NOT_HANDLED = new Outcome(new EscrowMQException("not handled"));

  final Duration lease;
  private final ReceivedMessage message;

  /** The first outcome counts. */
  final CompletableFuture<Outcome> outcome = new CompletableFuture<>();

  private Thread handling;
  private volatile boolean begun;
  private volatile End end;

  /** When the lease expires, by {@link System#nanoTime}. */
  volatile long expires;

  Delivery(ReceivedMessage message, Duration lease) {
    this.message = message;
    this.lease = lease;
    expires = System.nanoTime() + lease.toNanos();
  }

  /** Returns the message as it was received. */
  public ReceivedMessage message() {
    return message;
  }

  /** Returns the body. */
  public byte[] body() {
    return Messages.body(message);
  }

  /** Returns the body as text. */
  public String text() {
    return new String(body(), StandardCharsets.UTF_8);
  }

  /** Reads the body as JSON, into a record for example. */
  public <T> T json(Class<T> type) throws IOException {
    return Json.MAPPER.readValue(body(), type);
  }

  /**
   * Reports whether the lease has ended: another consumer may have the message now. The thread of
   * the handler was interrupted then.
   */
  public boolean isLost() {
    return end == End.LEASE_LOST || end == End.HELD_TOO_LONG;
  }

  End end() {
    return end;
  }

  /** Reports whether the handler was called. */
  boolean hasBegun() {
    return begun;
  }

  /** Interrupts the handler, or prevents that it is called. */
  synchronized void end(End why) {
    if (end == null && !outcome.isDone()) {
      end = why;
      if (handling != null) {
        handling.interrupt();
      }
    }
  }

  /** Calls the handler in this thread. */
  void handle(Worker.Handler handler) {
    synchronized (this) {
      if (end == null) {
        handling = Thread.currentThread();
        begun = true;
      }
    }
    var result = handling == null ? NOT_HANDLED : call(handler);
    synchronized (this) {
      handling = null;
      Thread.interrupted(); // the thread belongs to an executor
      outcome.complete(result);
    }
  }

  private Outcome call(Worker.Handler handler) {
    try {
      handler.handle(this);
      return new Outcome(null);
    } catch (Throwable failure) { // also an Error: one message must not stop the others
      return new Outcome(failure);
    }
  }
}
