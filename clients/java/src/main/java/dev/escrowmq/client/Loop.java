package dev.escrowmq.client;

import java.util.concurrent.CountDownLatch;

/** The one call of a method run(), which {@link #stop} interrupts where that is safe. */
final class Loop {
  private final CountDownLatch ended = new CountDownLatch(1);
  private boolean begun;
  private boolean stopped;
  private Thread waiting;

  /** Begins the part that may be interrupted. */
  synchronized void enter() {
    if (begun) {
      throw new IllegalStateException("run() was called before");
    }
    begun = true;
    waiting = Thread.currentThread();
  }

  /** Ends the part that may be interrupted. An interrupt by other code stays. */
  synchronized void calm() {
    if (stopped && waiting != null) {
      Thread.interrupted();
    }
    waiting = null;
  }

  void leave() {
    calm();
    ended.countDown();
  }

  synchronized void stop() {
    if (!stopped && waiting != null) {
      waiting.interrupt();
    }
    stopped = true;
  }

  /** Is it time to end, by stop() or by an interrupt of this thread? */
  synchronized boolean isStopped() {
    return stopped || Thread.currentThread().isInterrupted();
  }

  /** Stops, and waits until run() has ended. */
  void close() {
    stop();
    synchronized (this) {
      if (!begun) {
        return;
      }
    }
    try {
      ended.await();
    } catch (InterruptedException hurry) {
      Thread.currentThread().interrupt();
    }
  }

  /** Waits after a failure. */
  void rest() {
    try {
      Thread.sleep(1000);
    } catch (InterruptedException stop) {
      Thread.currentThread().interrupt();
    }
  }
}
