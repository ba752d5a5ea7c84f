import type { CallOptions } from "./api.js";
import type { EscrowMQ } from "./client.js";
import { RefusedEntries } from "./errors.js";
import { isTransient } from "./retry.js";
import type { Schemas } from "./schemas.js";
import { type AnyHeaders, InvalidSignature, verify } from "./webhooks.js";

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
  maxChecks?: number | undefined;
  /** Takes what went wrong: an answer that threw, an answer that was refused, a lost connection. */
  onError?: ((error: unknown) => void) | undefined;
}

const MAX_REASON = 1_000;
const PAUSE_MS = 1_000;

/**
 * Receives the checks of a producer group and answers them. An answer that throws is sent as
 * `unknown`, with the reason as evidence.
 */
export class Checker {
  readonly #onError: (error: unknown) => void;

  constructor(
    readonly client: EscrowMQ,
    readonly producerGroup: string,
    readonly answer: AnswerCheck,
    readonly options: CheckerOptions = {},
  ) {
    this.#onError = options.onError ?? ((error) => console.error(error));
  }

  /** Answer checks until the signal aborts. Throws what cannot become better by itself. */
  async run(call: { signal?: AbortSignal } = {}): Promise<void> {
    const { signal } = call;
    while (!signal?.aborted) {
      try {
        await this.runOnce(call);
      } catch (error) {
        if (signal?.aborted) return;
        if (!isTransient(error)) throw error;
        this.#onError(error);
        await this.client.clock.sleep(PAUSE_MS, signal);
      }
    }
  }

  /** Wait for checks once and answer them; the number of answers that were accepted. */
  async runOnce(call: CallOptions = {}): Promise<number> {
    const params = { path: { producer_group: this.producerGroup } };
    const { waitMs: wait_ms = 20_000, maxChecks: max_checks = 32 } = this.options;
    const { checks } = await this.client.api.POST(
      "/v1/producer-groups/{producer_group}/checks/receive",
      { params, body: { wait_ms, max_checks }, ...call },
    );
    if (checks.length === 0) return 0;
    const answers = await Promise.all(checks.map((check) => this.#answered(check)));
    try {
      const path = "/v1/producer-groups/{producer_group}/checks/answer";
      return (await this.client.api.POST(path, { params, body: { answers } })).accepted;
    } catch (error) {
      if (!(error instanceof RefusedEntries)) throw error;
      this.#onError(error);
      return (error as RefusedEntries<Schemas["AnswersResult"]>).answer.accepted;
    }
  }

  async #answered(check: Schemas["Check"]): Promise<Schemas["AnswerInput"]> {
    try {
      return { check_id: check.check_id, ...(await decided(this.answer, check)) };
    } catch (error) {
      this.#onError(error);
      const reason = String(error).slice(0, MAX_REASON);
      return { check_id: check.check_id, decision: "unknown", evidence: { reason } };
    }
  }
}

/** Signing secrets, or a function that looks them up for each request. */
export type Secrets = readonly string[] | (() => readonly string[] | Promise<readonly string[]>);

/**
 * A handler of the checks that the service posts to `check_url`. It reads the raw body, verifies
 * the signature, and answers 200 with a decision only; 401 or 400 to anything that is not a check,
 * and 500 where `answer` throws, which the service does not count as an answer.
 */
export function checkHandler(
  secrets: Secrets,
  answer: AnswerCheck,
): (request: Request) => Promise<Response> {
  return async (request) => {
    const raw = new Uint8Array(await request.arrayBuffer());
    const { status, body } = await checked(secrets, answer, request.headers, raw);
    const headers = { "content-type": "application/json" };
    return new Response(JSON.stringify(body), { status, headers });
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
): (request: NodeRequest, response: NodeResponse) => Promise<void> {
  return async (request, response) => {
    const raw = request.body === undefined ? await readAll(request) : request.body;
    const { status, body } = await checked(secrets, answer, request.headers, raw as Uint8Array);
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(body));
  };
}

async function checked(
  secrets: Secrets,
  answer: AnswerCheck,
  headers: AnyHeaders,
  raw: Uint8Array,
): Promise<{ status: number; body: object }> {
  try {
    verify(typeof secrets === "function" ? await secrets() : secrets, headers, raw);
  } catch (error) {
    if (!(error instanceof InvalidSignature)) throw error;
    return { status: 401, body: { error: error.message } };
  }
  const check = parsed(raw);
  if (check === undefined) return { status: 400, body: { error: "the body is no check" } };
  try {
    return { status: 200, body: await decided(answer, check) };
  } catch {
    return { status: 500, body: { error: "the outcome could not be looked up" } };
  }
}

async function decided(answer: AnswerCheck, check: CheckedTransaction): Promise<CheckAnswer> {
  const found = await answer(check.transaction_id, check);
  return typeof found === "string" ? { decision: found } : found;
}

function parsed(raw: Uint8Array): CheckedTransaction | undefined {
  try {
    const check = JSON.parse(Buffer.from(raw).toString("utf8")) as CheckedTransaction;
    return typeof check.transaction_id === "string" ? check : undefined;
  } catch {
    return undefined;
  }
}

async function readAll(request: AsyncIterable<unknown>): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  for await (const part of request) parts.push(part as Uint8Array);
  return Buffer.concat(parts);
}
