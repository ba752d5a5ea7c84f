import type { CallOptions } from "./api.js";
import type { EscrowMQ } from "./client.js";
import { EscrowMQError, ProblemError, RefusedEntries } from "./errors.js";
import { guarded, Outage } from "./outage.js";
import { asLine, asReason, textOf } from "./reason.js";
import type { Schemas } from "./schemas.js";
import { type AnyHeaders, InvalidSignature, requireSecrets, verify } from "./webhooks.js";

export type CheckAnswer = Schemas["CheckAnswer"];

/** What a check says of its transaction, by poll and by webhook. */
export type CheckedTransaction = Pick<
  Schemas["Check"],
  "check_id" | "transaction_id" | "business_key" | "age_ms" | "answer_number"
>;

/** Looks up the outcome of a transaction, as `markers.outcome` does. */
export type AnswerCheck = (
  transactionId: string,
  check: CheckedTransaction,
) => Promise<CheckAnswer["decision"] | CheckAnswer> | CheckAnswer["decision"] | CheckAnswer;

export interface CheckerOptions {
  /** How long one request waits for a check. */
  waitMs?: number | undefined;
  /** Number of checks of one request. Their lookups run at the same time. */
  maxChecks?: number | undefined;
  /** Time for one lookup, within the 15 seconds for which a check is leased. */
  answerMs?: number | undefined;
  /**
   * Takes what went wrong: a lookup that threw, an answer that was refused, once a producer group
   * that does not exist. An outage of the service is reported at its first failed try, then every
   * 30 seconds. Without it: to the console.
   */
  onError?: ((error: unknown) => void) | undefined;
  /** Takes the duration of an outage when the service answers again. Without it: to the console. */
  onRecovery?: ((awayMs: number) => void) | undefined;
}

const MAX_REASON = 1_000;
const NO_GROUP = "producer_group_not_found";

/**
 * Receives the checks of a producer group and answers them. An answer that throws is sent as
 * `unknown`, with the reason as evidence.
 *
 * A group exists from the first transaction of its producers. Until then there are no checks, which
 * is reported once: the name may be wrong.
 */
export class Checker {
  /** Takes what went wrong, and what happens next. */
  readonly #report: (error: unknown, next: string, check?: Schemas["Check"]) => void;
  readonly #outage: Outage;
  /** Does the group exist? Undefined before it was looked up. */
  #exists: boolean | undefined;

  constructor(
    readonly client: EscrowMQ,
    readonly producerGroup: string,
    readonly answer: AnswerCheck,
    readonly options: CheckerOptions = {},
  ) {
    const { onError } = options;
    const at = `producer group ${producerGroup}`;
    this.#report = onError
      ? guarded((error) => onError(error))
      : guarded((error, next, check) => {
          if (!check) return console.error(`${at}: ${asLine(error)}; ${next}`);
          const { transaction_id, business_key } = check;
          const key = business_key === undefined ? "" : ` (business key ${business_key})`;
          console.error(`${at}: the lookup of ${transaction_id}${key} failed; ${next}\n`, error);
        });
    const onOutage = (error: unknown): void => this.#report(error, "it is tried again");
    this.#outage = Outage.of(client, at, onOutage, options.onRecovery);
  }

  /**
   * Answer checks until the signal aborts. While the service is away, it is tried again. Throws
   * what cannot become better by itself.
   */
  async run({ signal }: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    const once = { signal, retry: { totalMs: 0 } };
    await this.#outage.repeat(async () => {
      const waitMs = this.#outage.isOn ? 0 : this.#waitMs; // to learn at once that it is over
      const checks = await this.#outage.watch(() => this.#receive(waitMs, once));
      await this.#outage.watch((call) => this.#answerAll(checks, call));
    }, signal);
  }

  /** Wait for checks once and answer them; the number of answers that were accepted. */
  async runOnce(call: CallOptions = {}): Promise<number> {
    return this.#answerAll(await this.#receive(this.#waitMs, call));
  }

  get #waitMs(): number {
    return this.options.waitMs ?? 20_000;
  }

  async #receive(wait_ms: number, call: CallOptions): Promise<Schemas["Check"][]> {
    if (!this.#exists && !(await this.#lookUp(call))) {
      await this.client.clock.sleep(wait_ms, call.signal);
      return [];
    }
    const params = { path: { producer_group: this.producerGroup } };
    const body = { wait_ms, max_checks: this.options.maxChecks ?? 32 };
    const path = "/v1/producer-groups/{producer_group}/checks/receive";
    return (await this.client.api.POST(path, { params, body, ...call })).checks;
  }

  /** Look the group up: a receive would create it, and a wrong name go unnoticed. */
  async #lookUp(call: CallOptions): Promise<boolean> {
    const params = { path: { producer_group: this.producerGroup } };
    const wasMissing = this.#exists === false;
    try {
      await this.client.api.GET("/v1/producer-groups/{producer_group}", { params, ...call });
      this.#exists = true;
    } catch (error) {
      if (!(error instanceof ProblemError) || error.code !== NO_GROUP) throw error;
      this.#exists = false;
      if (!wasMissing) this.#report(unknownGroup(this.producerGroup), "it is looked up again");
    }
    return this.#exists;
  }

  async #answerAll(checks: Schemas["Check"][], call: CallOptions = {}): Promise<number> {
    if (checks.length === 0) return 0;
    const answers = await Promise.all(checks.map((check) => this.#answered(check)));
    const params = { path: { producer_group: this.producerGroup } };
    try {
      const path = "/v1/producer-groups/{producer_group}/checks/answer";
      return (await this.client.api.POST(path, { params, body: { answers }, ...call })).accepted;
    } catch (error) {
      if (!(error instanceof RefusedEntries)) throw error;
      this.#report(error, "each is checked again unless it is decided");
      return error.answer.accepted;
    }
  }

  async #answered(check: Schemas["Check"]): Promise<Schemas["AnswerInput"]> {
    const { answerMs = 10_000 } = this.options;
    const done = new AbortController();
    try {
      const late = this.client.clock.sleep(answerMs, done.signal).then(() => undefined);
      const answer = await Promise.race([decided(this.answer, check), late]);
      if (!answer) throw new Error(`the lookup took more than ${answerMs} ms`);
      return { check_id: check.check_id, ...answer };
    } catch (error) {
      this.#report(error, "it is answered unknown, and checked again", check);
      const reason = asReason(textOf(error), MAX_REASON);
      return { check_id: check.check_id, decision: "unknown", evidence: { reason } };
    } finally {
      done.abort();
    }
  }
}

function unknownGroup(producerGroup: string): EscrowMQError {
  return new EscrowMQError(
    `producer group ${producerGroup} does not exist, and has no checks: either no producer has ` +
      "begun a transaction in it yet, or producers use another name; compare it with theirs",
  );
}

/** Signing secrets, or a function that looks them up for each request. */
export type Secrets = readonly string[] | (() => readonly string[] | Promise<readonly string[]>);

export interface CheckHandlerOptions {
  /** Takes what is answered with 500: the lookup of secrets or of an outcome that threw. */
  onError?: ((error: unknown) => void) | undefined;
}

const MAX_BODY_BYTES = 65_536;
const DECISIONS: ReadonlySet<unknown> = new Set(["commit", "rollback", "unknown"]);

/**
 * A handler of the checks that the service posts to `check_url`. It reads the raw body, at most
 * 64 KiB, verifies the signature, and answers 200 with a decision only; 401, 400 or 413 to anything
 * that is not a check, and 500 where `secrets` or `answer` throws, which the service does not count
 * as an answer. Throws if a secret in a list is malformed; promises of the handler never reject.
 */
export function checkHandler(
  secrets: Secrets,
  answer: AnswerCheck,
  options: CheckHandlerOptions = {},
): (request: Request) => Promise<Response> {
  const respond = responder(secrets, answer, options);
  return async (request) => {
    const { status, body } = await respond(request.headers, () => readAll(request.body));
    return new Response(body, { status, headers: { "content-type": "application/json" } });
  };
}

/** The parts of a request of Node and Express that are read. */
export interface NodeRequest extends AsyncIterable<unknown> {
  headers: AnyHeaders;
  /** With Express: the bytes, by `express.raw({ type: "*" + "/*" })`. */
  body?: unknown;
}
/** The parts of a response of Node and Express that are used. */
export interface NodeResponse {
  writeHead(status: number, headers: Record<string, string>): unknown;
  end(body: string): unknown;
}

/** The same for servers of Node, such as Express with `express.raw`. */
export function nodeCheckHandler(
  secrets: Secrets,
  answer: AnswerCheck,
  options: CheckHandlerOptions = {},
): (request: NodeRequest, response: NodeResponse) => Promise<void> {
  const onError = guarded(options.onError ?? ((error) => console.error(error)));
  const respond = responder(secrets, answer, { onError });
  return async (request, response) => {
    const read = async (): Promise<unknown> => request.body ?? (await readAll(request));
    const { status, body } = await respond(request.headers, read);
    // The rest of a body that is too long is not read.
    const close = status === 413 ? { connection: "close" } : {};
    try {
      response.writeHead(status, { "content-type": "application/json", ...close });
      response.end(body);
    } catch (error) {
      onError(error); // another part of the program has answered
    }
  };
}

interface Answered {
  status: number;
  body: string;
}

/** Makes the answer to a request, whatever its body is and whatever throws. */
function responder(
  secrets: Secrets,
  answer: AnswerCheck,
  options: CheckHandlerOptions,
): (headers: AnyHeaders, read: () => Promise<unknown>) => Promise<Answered> {
  if (typeof secrets !== "function") requireSecrets(secrets);
  const onError = guarded(options.onError ?? ((error) => console.error(error)));
  const refusal = (status: number, error: string): Answered => ({
    status,
    body: JSON.stringify({ error }),
  });
  return async (headers, read) => {
    let raw: Uint8Array;
    try {
      raw = (await read()) as Uint8Array;
    } catch {
      return refusal(400, "the body did not arrive");
    }
    if (raw.length > MAX_BODY_BYTES) return refusal(413, "the body is too long for a check");
    try {
      const known = typeof secrets === "function" ? await secrets() : secrets;
      requireSecrets(known);
      verify(known, headers, raw);
    } catch (error) {
      if (error instanceof InvalidSignature) return refusal(401, error.message);
      onError(error);
      return refusal(500, "the signature could not be verified");
    }
    const check = parsed(raw);
    if (check === undefined) return refusal(400, "the body is no check");
    try {
      return { status: 200, body: JSON.stringify(await decided(answer, check)) };
    } catch (error) {
      onError(error);
      return refusal(500, "the outcome could not be looked up");
    }
  };
}

async function decided(answer: AnswerCheck, check: CheckedTransaction): Promise<CheckAnswer> {
  const found = await answer(check.transaction_id, check);
  const decision = typeof found === "string" ? { decision: found } : found;
  if (!DECISIONS.has(decision?.decision)) throw new TypeError("the lookup gave no decision");
  return decision;
}

function parsed(raw: Uint8Array): CheckedTransaction | undefined {
  try {
    const check = JSON.parse(Buffer.from(raw).toString("utf8")) as CheckedTransaction;
    return typeof check.transaction_id === "string" ? check : undefined;
  } catch {
    return undefined;
  }
}

/** The body, or its beginning if it is longer than that of any check. */
async function readAll(source: AsyncIterable<unknown> | null): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  let length = 0;
  // Without `for`, which would close the connection before the answer to a body that is too long.
  const rest = source?.[Symbol.asyncIterator]();
  while (rest && length <= MAX_BODY_BYTES) {
    const { done, value } = await rest.next();
    if (done) break;
    parts.push(value as Uint8Array);
    length += (value as Uint8Array).length;
  }
  return Buffer.concat(parts);
}
