import type { Outcome } from "./markers.js";
import type { Problem } from "./schemas.js";

/** The base of all errors of this package. */
export class EscrowMQError extends Error {
  // A text in each class: programs log it, and a minifier renames classes.
  override name = "EscrowMQError";
}

/** No response came: the service could not be reached, or did not answer in time. */
export class Unreachable extends EscrowMQError {
  override name = "Unreachable";
}

/**
 * The service refused a request. `code` says why. Decide by `status` and `retryable` where you do
 * not know a code, as later versions of the service may add some.
 */
export class ProblemError extends EscrowMQError {
  override name = "ProblemError";
  readonly code: string;
  readonly status: number;
  readonly detail: string;
  readonly retryable: boolean;
  /** How long to wait before the same request, if the service said so. */
  readonly retryAfterMs: number | undefined;
  readonly errors: Problem["errors"];
  readonly context: Problem["context"];
  readonly requestId: string | undefined;

  constructor(problem: Partial<Problem>, status: number) {
    const code = problem.code ?? `http_${status}`;
    const detail = problem.detail ?? "the response is not a problem document";
    super(`${status} ${code}: ${detail}`);
    this.code = code;
    this.status = status;
    this.detail = detail;
    this.retryable = problem.retryable ?? false;
    this.retryAfterMs = problem.retry_after_ms;
    this.errors = problem.errors ?? [];
    this.context = problem.context ?? {};
    this.requestId = problem.request_id;
  }

  /** The problem of a response, whose body was parsed as far as it could be. */
  static of({ status, headers }: Response, body: unknown): ProblemError {
    const problem = (typeof body === "object" ? body : {}) as Partial<Problem>;
    const seconds = Number(headers.get("retry-after") ?? NaN); // also a proxy sends it
    const waits = Number.isFinite(seconds) ? { retry_after_ms: seconds * 1_000 } : {};
    return new ProblemError({ ...waits, ...problem }, status);
  }
}

/** Some entries of a batch were refused. `answer` is the whole response. */
export class RefusedEntries<Answer = unknown> extends EscrowMQError {
  override name = "RefusedEntries";
  readonly problems: Problem[];

  constructor(readonly answer: Answer) {
    const { results = [] } = answer as { results?: { problem?: Problem }[] };
    const problems = results.flatMap(({ problem }) => (problem ? [problem] : []));
    super(`${problems.length} of ${results.length} entries were refused: ${summary(problems)}`);
    this.problems = problems;
  }
}

/** The lease of a message ended before its handler did. The message is delivered again. */
export class LeaseLost extends EscrowMQError {
  override name = "LeaseLost";
}

/**
 * The local work is done, and the service has not confirmed the commit. Do not repeat the work: a
 * check publishes the messages if the local transaction committed.
 */
export class CommitPending extends EscrowMQError {
  override name = "CommitPending";
  constructor(
    readonly transactionId: string,
    cause?: unknown,
  ) {
    const what = `the commit of transaction ${transactionId} is not confirmed; a check decides`;
    super(what, causedBy(cause));
  }
}

/** The work returned, and its local transaction did not commit. Nothing is published. */
export class NotCommitted extends EscrowMQError {
  override name = "NotCommitted";
  constructor(readonly transactionId: string) {
    super(`the local transaction of ${transactionId} did not commit`);
  }
}

/**
 * Markers were given, and the work returned without a mark: its local transaction may have failed
 * before it, or have committed without a marker. Nothing is published.
 */
export class NotMarked extends EscrowMQError {
  override name = "NotMarked";
  constructor(readonly transactionId: string) {
    super(`the work of transaction ${transactionId} returned without tx.mark or tx.markSync`);
  }
}

/**
 * No transaction is open on the connection, so the marker would be committed before the work. No
 * marker was inserted.
 */
export class MarkerCommitsAlone extends EscrowMQError {
  override name = "MarkerCommitsAlone";
  constructor(cause?: unknown) {
    const what = "no transaction is open on this connection: send BEGIN before the mark";
    super(what, causedBy(cause));
  }
}

/**
 * The outcome of the transaction is already decided. The local transaction must roll back.
 *
 * `outcome`, as `client.transaction` throws it: `commit` means that an earlier run did the work, so
 * it is done; `rollback` that this id is used up, so try again with another. Undefined where the
 * markers could not be read.
 */
export class Fenced extends EscrowMQError {
  override name = "Fenced";
  outcome: Outcome | undefined;

  constructor(
    readonly transactionId: string,
    cause?: unknown,
    outcome?: Outcome,
  ) {
    const what = `transaction ${transactionId} is already decided; roll back the local transaction`;
    super(what, causedBy(cause));
    this.outcome = outcome;
  }
}

/** No property at all without a cause: a console would show `[cause]: undefined`. */
function causedBy(cause: unknown): ErrorOptions | undefined {
  return cause === undefined ? undefined : { cause };
}

function summary(problems: Problem[]): string {
  const counts = new Map<string, number>();
  for (const { code } of problems) counts.set(code, (counts.get(code) ?? 0) + 1);
  return [...counts].map(([code, count]) => `${code} (${count})`).join(", ");
}
