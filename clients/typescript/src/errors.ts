import type { Outcome } from "./markers.js";
import type { Problem, Schemas } from "./schemas.js";

/** The base of all errors of this package. */
export class EscrowMQError extends Error {
  // A text in each class: programs log it, and a minifier renames classes.
  override name = "EscrowMQError";
}

/** No response came: the service could not be reached, or did not answer in time. */
export class Unreachable extends EscrowMQError {
  override name = "Unreachable";
  /**
   * Whether the service may have carried the request out: false if it was never sent. A change with
   * `If-Match` whose answer was lost, and which is refused with 412 when it is sent again, has an
   * unknown outcome, too: read the resource, and compare it with what you asked for.
   */
  readonly outcomeUnknown: boolean;

  constructor(message: string, options: ErrorOptions & { outcomeUnknown?: boolean } = {}) {
    const { outcomeUnknown = true, ...rest } = options;
    super(message, rest);
    this.outcomeUnknown = outcomeUnknown;
  }
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

/** What became of an entry of a batch: it has the fields of the operation that was called. */
export type EntryResult = Pick<Schemas["SettleResult"], "status"> &
  Partial<Schemas["SettleResult"] & Schemas["BatchResult"] & Schemas["AnswerResult"]>;

/** Why an entry was refused. */
export interface EntryProblem extends Problem {
  /** Position of the entry in its batch. */
  index: number;
  /** The `id`, `receipt_handle` or `check_id` of the entry; undefined if it has none. */
  id: string | undefined;
}

/** Some entries of a batch were refused. `answer` is the whole response. */
export class RefusedEntries extends EscrowMQError {
  override name = "RefusedEntries";
  readonly problems: EntryProblem[];

  constructor(readonly answer: { accepted: number; rejected: number; results: EntryResult[] }) {
    const { results = [] } = answer; // a proxy may answer, too
    const problems = results.flatMap(({ problem, id, receipt_handle, check_id }, index) =>
      problem ? [{ ...problem, index, id: id ?? receipt_handle ?? check_id }] : [],
    );
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

/**
 * The work returned, and its local transaction did not commit, or had no marker when it did.
 * `cause`: of a mark that failed. Nothing is published.
 */
export class NotCommitted extends EscrowMQError {
  override name = "NotCommitted";
  constructor(
    readonly transactionId: string,
    cause?: unknown,
  ) {
    super(`the local transaction of ${transactionId} did not commit`, causedBy(cause));
  }
}

/**
 * Markers were given, and the work returned without a mark, or before it was inserted: the local
 * transaction may have failed before it, or have committed without a marker. Nothing is published
 * unless a marker is committed all the same.
 */
export class NotMarked extends EscrowMQError {
  override name = "NotMarked";
  constructor(
    readonly transactionId: string,
    what = "returned without tx.mark or tx.markSync",
  ) {
    super(`the work of transaction ${transactionId} ${what}`);
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

const TAKEN_BY: Record<string, string> = {
  committed: "committed; its work is done, so do not repeat that under another id",
  rolled_back: "rolled back; its id is spent, so use another",
};

/**
 * The id of the transaction was used before with other messages or fields, such as a timestamp in
 * the JSON. Nothing was begun, and the transaction that has the id goes on as it was. An id has the
 * same messages each time.
 */
export class IdTaken extends EscrowMQError {
  override name = "IdTaken";

  /** `state`: of the transaction that has the id; undefined while its begin is still running. */
  constructor(
    readonly transactionId: string,
    readonly state: string | undefined,
    cause?: unknown,
  ) {
    const advice =
      TAKEN_BY[state ?? ""] ??
      `${state ?? "being begun"}; repeat it with the same messages and fields, or use another id`;
    const what = `transaction ${transactionId} exists with other messages or fields, and is`;
    super(`${what} ${advice}`, causedBy(cause));
  }
}

const BEFORE = "by a check or by an earlier call with this id that failed";
const ROLLED_BACK_BY: Record<string, string> = {
  producer: "by its producer, in an earlier call with this id that failed",
  check: "by a check, which found no committed marker",
  operator: "by an operator",
  policy: "by the policy of its check, as its outcome stayed unknown",
};

/**
 * The id of the transaction is spent: it was committed or rolled back before this call, which has
 * done nothing. The local transaction must roll back.
 *
 * `outcome`, as `client.transaction` throws it: `commit` means that an earlier call did the work,
 * so it is done; `rollback` that this id is used up, so try again with another. Undefined where the
 * markers could not be read. `resolvedBy`: who decided, if that is known.
 */
export class Fenced extends EscrowMQError {
  override name = "Fenced";

  constructor(
    readonly transactionId: string,
    cause?: unknown,
    public outcome?: Outcome,
    public resolvedBy?: string,
  ) {
    super(fencedText(transactionId, outcome, resolvedBy), causedBy(cause));
  }

  /** Note what the id has come to, also in the text. */
  decided(outcome: Outcome, resolvedBy: string | undefined): void {
    const before = this.message;
    this.outcome = outcome;
    if (resolvedBy !== undefined) this.resolvedBy = resolvedBy;
    this.message = fencedText(this.transactionId, outcome, this.resolvedBy);
    if (this.stack) this.stack = this.stack.replace(before, () => this.message);
  }
}

/** Say what became of the id, and what to do. */
function fencedText(id: string, outcome: Outcome | undefined, resolvedBy: string = ""): string {
  const known = `(outcome: ${outcome ?? "not known"})`;
  if (outcome === "commit") {
    return resolvedBy === "operator"
      ? `${id} was committed by an operator: roll the local transaction back ${known}`
      : `${id} was committed by an earlier call with this id: its work is done, so do not repeat ` +
          `it, and roll the local transaction back ${known}`;
  }
  if (outcome === "rollback") {
    const by = ROLLED_BACK_BY[resolvedBy] ?? BEFORE;
    return (
      `${id} was rolled back ${by}, so its id is spent: roll the local transaction back, and try ` +
      `again under another id ${known}`
    );
  }
  return (
    `${id} has a marker already, so it was committed or rolled back before: roll the local ` +
    `transaction back ${known}`
  );
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
