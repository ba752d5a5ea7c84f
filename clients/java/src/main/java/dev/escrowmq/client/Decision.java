package dev.escrowmq.client;

import dev.escrowmq.client.model.CheckDecision;

/** The answer to a check. Answer UNKNOWN while the local transaction may still be running. */
public enum Decision {
  /** The local transaction has committed: publish its messages. */
  COMMIT(CheckDecision.COMMIT),
  /** The local transaction has not committed, and never will. */
  ROLLBACK(CheckDecision.ROLLBACK),
  /** Ask again later. */
  UNKNOWN(CheckDecision.UNKNOWN);

  private final CheckDecision word;

  Decision(CheckDecision word) {
    this.word = word;
  }

  CheckDecision word() {
    return word;
  }
}
