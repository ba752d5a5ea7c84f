package dev.escrowmq.client;

/** Looks up how a transaction ended in the producer's database, as {@link Markers#outcome} does. */
@FunctionalInterface
public interface Outcomes {
  /** Returns the decision. An exception means that the outcome is unknown. */
  Decision of(String transactionId) throws Exception;
}
