package dev.escrowmq.client;

import dev.escrowmq.client.invoker.ApiException;
import dev.escrowmq.client.model.AckEntry;
import dev.escrowmq.client.model.AckInput;
import dev.escrowmq.client.model.DeadLetterEntry;
import dev.escrowmq.client.model.DeadLetterInput;
import dev.escrowmq.client.model.ExtendEntry;
import dev.escrowmq.client.model.ExtendInput;
import dev.escrowmq.client.model.NackEntry;
import dev.escrowmq.client.model.NackInput;
import dev.escrowmq.client.model.ReceiveInput;
import dev.escrowmq.client.model.ReceivedMessage;
import dev.escrowmq.client.model.ReceivedMessages;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Receives the messages of a group, calls a handler for each, and acknowledges those for which it
 * returned. An exception rejects the message: it is delivered again, and becomes a dead letter
 * after the last attempt of its group.
 *
 * <p>Leases are extended at a third of their time, for as long as the handler runs. A handler whose
 * lease is lost is interrupted. No message is leased that no handler is free for. Handlers run on
 * virtual threads where the JVM has them. Delivery is at least once: a handler must expect the same
 * message again.
 */
public final class Worker implements AutoCloseable {
  private static final System.Logger LOG = System.getLogger(Worker.class.getName());
  private static final int MOST_MESSAGES = 1000; // of one receive

  private final EscrowMQ client;
  private final EscrowMQ once; // repeats no request
  private final String group;
  private final Handler handler;
  private final int concurrency;
  private final Duration maxLease;
  private final Duration shutdown;
  private final String name;

  private final Outage outage;
  private final Loop loop = new Loop();
  private final Semaphore free;
  private final Set<Delivery> held = ConcurrentHashMap.newKeySet();
  private final AtomicLong acknowledged = new AtomicLong();
  private final AtomicLong rejected = new AtomicLong();
  private final AtomicLong lost = new AtomicLong();
  private volatile long received = System.nanoTime();
  private ExecutorService threads;
  private ScheduledExecutorService clock;

  private Worker(Builder builder) {
    outage = new Outage(LOG, "a worker of " + builder.group);
    client = builder.client.watched(outage);
    once = builder.client.watchedOnce(outage);
    group = builder.group;
    handler = builder.handler;
    concurrency = builder.concurrency;
    maxLease = builder.maxLease;
    shutdown = builder.shutdown;
    name = builder.name;
    free = new Semaphore(concurrency);
  }

  /** Handles one message. */
  @FunctionalInterface
  public interface Handler {
    /**
     * Returns if the message is done.
     *
     * @throws RejectException to have it delivered again after a time of your own
     * @throws DeadLetterException to set it aside at once
     * @throws Exception to have it delivered again after the group's backoff
     */
    void handle(Delivery delivery) throws Exception;
  }

  /** What became of messages since the start. */
  public record Stats(long acknowledged, long rejected, long lost) {}

  /** Begins a worker of this group. */
  public static Builder builder(EscrowMQ client, String group, Handler handler) {
    return new Builder(client, group, handler);
  }

  /** The settings of a worker. */
  public static final class Builder {
    private final EscrowMQ client;
    private final String group;
    private final Handler handler;
    private int concurrency = 16;
    private Duration maxLease = Duration.ofHours(1);
    private Duration shutdown = Duration.ofSeconds(25);
    private String name;

    private Builder(EscrowMQ client, String group, Handler handler) {
      this.client = client;
      this.group = group;
      this.handler = handler;
    }

    /** Sets the number of handlers at a time, at first 16. */
    public Builder concurrency(int handlers) {
      concurrency = handlers;
      return this;
    }

    /** Ends the extension of a lease, so that a handler that hangs gives its message back. */
    public Builder maxLease(Duration time) {
      maxLease = time;
      return this;
    }

    /** Sets how long handlers may go on when the worker is stopped, at first 25 seconds. */
    public Builder shutdown(Duration time) {
      shutdown = time;
      return this;
    }

    /** Sets a name that is stored with the leases. */
    public Builder name(String worker) {
      name = worker;
      return this;
    }

    /** Makes the worker. */
    public Worker build() {
      return new Worker(this);
    }
  }

  /** Returns the counts. Safe while the worker runs. */
  public Stats stats() {
    return new Stats(acknowledged.get(), rejected.get(), lost.get());
  }

  /**
   * Returns how long ago the service last answered a receive. It is under 30 seconds while the
   * worker is well and not all of its handlers are busy.
   */
  public Duration sinceReceive() {
    return Duration.ofNanos(System.nanoTime() - received);
  }

  /** Makes {@link #run} end, and does not wait for that: a handler may call it. */
  public void stop() {
    loop.stop();
  }

  /** Stops, and waits for {@link #run}: for a shutdown hook. */
  @Override
  public void close() {
    loop.close();
  }

  /**
   * Receives until the worker is stopped or this thread is interrupted; then waits for the
   * handlers, at most for the time of shutdown, and rejects what they have not finished. A message
   * that no handler has begun is given back unprocessed: its attempt does not count. While the
   * service is away, it is tried again.
   *
   * @throws ProblemException if the service refuses to let this group receive
   */
  public void run() {
    loop.enter();
    threads = Threads.executor("escrowmq-worker-" + group);
    clock = Executors.newSingleThreadScheduledExecutor(Threads.named("escrowmq-leases-" + group));
    var interrupted = false;
    try {
      var found =
          outage.repeat(
              loop::isStopped, () -> EscrowMQ.answered(once.groups().getGroup(group)));
      if (found != null) {
        receive(Boolean.TRUE.equals(found.getOrdered()));
      }
    } finally {
      loop.calm();
      interrupted = Thread.interrupted();
      finish();
      clock.shutdownNow();
      threads.shutdown();
      loop.leave();
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Leases messages for free handlers and starts them. */
  private void receive(boolean ordered) {
    while (!loop.isStopped()) {
      // Wait for one free handler, then take those that are free beside it.
      try {
        free.acquire();
      } catch (InterruptedException stop) {
        Thread.currentThread().interrupt();
        return;
      }
      var wanted = Math.min(1 + free.drainPermits(), concurrency);
      var attempt = UUID.randomUUID().toString();
      var got = 0;
      try {
        var list = outage.repeat(loop::isStopped, () -> receive(attempt, wanted));
        if (list == null) {
          return;
        }
        got = list.getMessages().size();
        received = System.nanoTime();
        var deliveries = new ArrayList<Delivery>();
        for (var message : list.getMessages()) {
          var lease = Duration.between(list.getServerTime(), message.getLeaseExpiresAt());
          deliveries.add(new Delivery(message, lease));
        }
        for (var line : lines(deliveries, ordered)) {
          threads.execute(() -> handleLine(line));
        }
      } finally {
        free.release(wanted - got);
      }
    }
  }

  private ReceivedMessages receive(String attempt, int wanted) {
    var input =
        new ReceiveInput()
            .attemptId(attempt)
            .maxMessages(Math.min(wanted, MOST_MESSAGES))
            .waitMs(outage.patience().toMillis())
            .worker(name);
    return EscrowMQ.answered(once.consume().receiveMessages(group, input));
  }

  /** Waits for the handlers, interrupts those that are too slow, and leaves behind the slowest. */
  private void finish() {
    if (isIdleWithin(shutdown)) {
      return;
    }
    held.forEach(delivery -> delivery.end(Delivery.End.STOPPED));
    if (!isIdleWithin(Duration.ofSeconds(1))) {
      // A handler that takes no notice of its interrupt loses its message.
      held.forEach(delivery -> delivery.outcome.complete(Delivery.NOT_HANDLED));
      isIdleWithin(Duration.ofMinutes(2));
    }
  }

  private boolean isIdleWithin(Duration time) {
    try {
      return free.tryAcquire(concurrency, time.toMillis(), TimeUnit.MILLISECONDS);
    } catch (InterruptedException hurry) {
      return false; // interrupted once more: go on to the next step
    }
  }

  /**
   * Splits messages into those that are handled one after another: of an ordered group, those with
   * one ordering key, or without a key in one queue.
   */
  static Collection<List<Delivery>> lines(List<Delivery> deliveries, boolean ordered) {
    var lines = new LinkedHashMap<Object, List<Delivery>>();
    for (var delivery : deliveries) {
      Object line = ordered ? orderOf(delivery.message()) : delivery;
      lines.computeIfAbsent(line, first -> new ArrayList<>()).add(delivery);
    }
    return lines.values();
  }

  private static List<Object> orderOf(ReceivedMessage message) {
    return message.getOrderingKey() != null
        ? List.of(message.getOrderingKey())
        : List.of(message.getTopic(), message.getQueueId());
  }

  /** Handles messages one after another. The leases of those that wait are extended, too. */
  private void handleLine(List<Delivery> line) {
    for (var delivery : line) {
      held.add(delivery);
      extendLater(delivery, System.nanoTime());
    }
    var isBroken = false;
    for (var delivery : line) {
      try {
        Throwable failure = new RejectException(Duration.ZERO, "an earlier message was rejected");
        if (!isBroken) {
          threads.execute(() -> delivery.handle(handler));
          failure = delivery.outcome.join().failure();
        }
        held.remove(delivery);
        isBroken |= settle(delivery, failure);
      } finally {
        held.remove(delivery);
        free.release();
      }
    }
  }

  /** Extends a lease at each third of its time, for as long as the delivery is held. */
  private void extendLater(Delivery delivery, long started) {
    Runnable turn =
        () -> {
          if (held.contains(delivery) && !delivery.isLost()) {
            extend(delivery, started);
            extendLater(delivery, started);
          }
        };
    try {
      var third = delivery.lease.toMillis() / 3;
      clock.schedule(() -> threads.execute(turn), third, TimeUnit.MILLISECONDS);
    } catch (RejectedExecutionException ended) {
      return; // the worker has ended, and every delivery is settled
    }
  }

  private void extend(Delivery delivery, long started) {
    var now = System.nanoTime();
    if (now - started > maxLease.toNanos()) {
      delivery.end(Delivery.End.HELD_TOO_LONG);
      var id = delivery.message().getMessageId();
      LOG.log(Level.ERROR, "the handler of {0} took longer than maxLease: its lease ends", id);
      return;
    }
    Runnable watch =
        () -> {
          if (System.nanoTime() - delivery.expires >= 0) {
            delivery.end(Delivery.End.LEASE_LOST);
          }
        };
    clock.schedule(watch, delivery.expires - now, TimeUnit.NANOSECONDS);
    var entry = new ExtendEntry().receiptHandle(handle(delivery));
    entry.leaseMs(delivery.lease.toMillis());
    try {
      client.consume().extendLeases(group, new ExtendInput().addEntriesItem(entry));
      delivery.expires = now + delivery.lease.toNanos();
    } catch (EscrowMQException | ApiException failure) {
      if (isExpired(failure)) {
        delivery.end(Delivery.End.LEASE_LOST);
      }
    }
  }

  /** Acknowledges or rejects a message, and reports whether it will be delivered again. */
  private boolean settle(Delivery delivery, Throwable failure) {
    var id = delivery.message().getMessageId();
    if (delivery.isLost()) {
      lost.incrementAndGet();
      if (delivery.end() == Delivery.End.LEASE_LOST) {
        LOG.log(Level.ERROR, "the lease of {0} was lost while it was handled", id);
      }
      return true;
    }
    try {
      return send(delivery, failure);
    } catch (RuntimeException refused) { // or what the handler threw has no readable message
      if (isExpired(refused)) {
        lost.incrementAndGet();
        if (failure != null) {
          // A rejection that is repeated after a lost answer is refused, too.
          LOG.log(Level.INFO, "{0} was rejected before, or its lease had ended", id);
          return true;
        }
      }
      LOG.log(Level.ERROR, id + " was not settled, and is delivered again", refused);
      return true;
    }
  }

  private boolean send(Delivery delivery, Throwable failure) {
    var isStopped = delivery.end() == Delivery.End.STOPPED;
    if (failure == null) {
      var entry = new AckEntry().receiptHandle(handle(delivery));
      client.consume().ackMessages(group, new AckInput().addEntriesItem(entry));
      acknowledged.incrementAndGet();
      return false;
    }
    if (failure instanceof DeadLetterException dead) {
      var entry = new DeadLetterEntry().receiptHandle(handle(delivery));
      entry.reason(Threads.reason(dead));
      client.consume().deadLetterMessages(group, new DeadLetterInput().addEntriesItem(entry));
      rejected.incrementAndGet();
      return false;
    }
    var entry = new NackEntry().receiptHandle(handle(delivery));
    if (isStopped) {
      entry.delayMs(0L).reason("the worker stopped");
    } else if (failure instanceof RejectException chosen) {
      entry.delayMs(chosen.delay().toMillis()).reason(Threads.reason(chosen));
    } else {
      LOG.log(Level.WARNING, delivery.message().getMessageId() + " was rejected", failure);
      entry.reason(Threads.reason(failure));
    }
    if (!delivery.hasBegun()) {
      entry.unprocessed(true);
    }
    client.consume().nackMessages(group, new NackInput().addEntriesItem(entry));
    rejected.incrementAndGet();
    if (isStopped) {
      var id = delivery.message().getMessageId();
      if (delivery.hasBegun()) {
        LOG.log(Level.WARNING, "{0} was rejected at the stop, and its attempt counts", id);
      } else {
        LOG.log(Level.INFO, "{0} was given back at the stop", id);
      }
    }
    return true;
  }

  private static String handle(Delivery delivery) {
    return delivery.message().getReceiptHandle();
  }

  private static boolean isExpired(RuntimeException failure) {
    return failure instanceof RefusedException refused
        && refused.refused().values().stream().anyMatch(one -> one.is("lease_expired"));
  }
}
