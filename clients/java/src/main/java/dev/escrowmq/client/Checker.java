package dev.escrowmq.client;

import dev.escrowmq.client.invoker.ApiException;
import dev.escrowmq.client.model.AnswerInput;
import dev.escrowmq.client.model.AnswersInput;
import dev.escrowmq.client.model.Check;
import dev.escrowmq.client.model.ReceiveChecksInput;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Receives the checks of a producer group and answers them from the producer's database. Any number
 * of processes may run one.
 */
public final class Checker implements AutoCloseable {
  private static final System.Logger LOG = System.getLogger(Checker.class.getName());

  private final EscrowMQ client;
  private final Outage outage;
  private final String producerGroup;
  private final Outcomes outcomes;
  private final Duration timeout;
  private final Loop loop = new Loop();
  private final ExecutorService lookups = Threads.executor("escrowmq-checker");

  /** Gives each answer 10 seconds, of the 15 for which a check is leased. */
  public Checker(EscrowMQ client, String producerGroup, Outcomes outcomes) {
    this(client, producerGroup, outcomes, Duration.ofSeconds(10));
  }

  /** Gives each answer this much time; then the check is answered with UNKNOWN. */
  public Checker(EscrowMQ client, String producerGroup, Outcomes outcomes, Duration timeout) {
    this.client = client;
    this.producerGroup = producerGroup;
    this.outage = new Outage(LOG, "a checker of " + producerGroup);
    this.outcomes = outcomes;
    this.timeout = timeout;
  }

  /**
   * Answers checks until {@link #close} is called or the thread is interrupted. A failure of the
   * service is logged and tried again.
   */
  public void run() {
    loop.enter();
    var once = client.watchedOnce(outage);
    var watched = client.watched(outage);
    try {
      find(once);
      while (!loop.isStopped()) {
        try {
          var checks = outage.repeat(loop::isStopped, () -> receive(once, outage.patience()));
          if (checks != null) {
            answer(watched, checks);
          }
        } catch (EscrowMQException | ApiException failure) {
          if (!loop.isStopped()) {
            LOG.log(Level.ERROR, "checks of " + producerGroup + " were not answered", failure);
            loop.rest();
          }
        }
      }
    } finally {
      loop.leave();
    }
  }

  /** Warns: the first receive creates a group, so a wrong name would go unnoticed. */
  private void find(EscrowMQ by) {
    try {
      outage.repeat(loop::isStopped, () -> by.checks().getProducerGroup(producerGroup));
    } catch (ProblemException refused) {
      if (refused.status() == 404) {
        var text = "the producer group {0} does not exist: no producer has used it yet, or its name"
            + " is wrong";
        LOG.log(Level.WARNING, text, producerGroup);
      } // of another refusal, the receive says so
    }
  }

  /** Runs in a thread of its own. */
  public Checker start() {
    Threads.named("escrowmq-checker-" + producerGroup).newThread(this::run).start();
    return this;
  }

  /**
   * Waits for a check this long, answers it, and returns the number of answers that counted.
   *
   * @throws RefusedException if the service refused the answer
   */
  public int runOnce(Duration wait) {
    return answer(client, receive(client, wait));
  }

  private List<Check> receive(EscrowMQ by, Duration wait) {
    // One at a time: each has its whole lease.
    var wanted = new ReceiveChecksInput().waitMs(wait.toMillis()).maxChecks(1);
    return EscrowMQ.answered(by.checks().receiveChecks(producerGroup, wanted)).getChecks();
  }

  private int answer(EscrowMQ by, List<Check> checks) {
    if (checks.isEmpty()) {
      return 0;
    }
    var answers = new AnswersInput();
    for (var check : checks) {
      answers.addAnswersItem(answer(check.getTransactionId()).checkId(check.getCheckId()));
    }
    return EscrowMQ.answered(by.checks().answerChecks(producerGroup, answers)).getAccepted();
  }

  /** Ends {@link #run} and waits for it. */
  @Override
  public void close() {
    loop.close();
    lookups.shutdownNow();
  }

  /** Looks a transaction up. A failure becomes UNKNOWN, with itself as evidence. */
  private AnswerInput answer(String transactionId) {
    var lookup = lookups.submit(() -> outcomes.of(transactionId));
    try {
      var decision = lookup.get(timeout.toMillis(), TimeUnit.MILLISECONDS);
      return decision == null
          ? unknown("no outcome")
          : new AnswerInput().decision(decision.word());
    } catch (ExecutionException failure) {
      var cause = failure.getCause();
      LOG.log(Level.WARNING, "the check of " + transactionId + " is answered unknown", cause);
      return unknown(Threads.reason(failure.getCause()));
    } catch (TimeoutException late) {
      return unknown("no outcome within " + timeout);
    } catch (InterruptedException stop) {
      Thread.currentThread().interrupt();
      return unknown("the checker stopped");
    } finally {
      lookup.cancel(true);
    }
  }

  private static AnswerInput unknown(String reason) {
    return new AnswerInput().decision(Decision.UNKNOWN.word()).evidence(Map.of("error", reason));
  }
}
