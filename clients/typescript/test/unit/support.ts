import { type Clock, EscrowMQ, type Options, type Problem } from "../../src/index.js";

/** A clock that a test moves. */
export class ManualClock implements Clock {
  #now = 0;
  readonly #sleepers = new Set<{ at: number; wake: () => void }>();

  now(): number {
    return this.#now;
  }

  random(): number {
    return 0.5;
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      if (signal?.aborted || ms <= 0) return resolve();
      const wake = (): void => {
        this.#sleepers.delete(sleeper);
        signal?.removeEventListener("abort", wake);
        resolve();
      };
      const sleeper = { at: this.#now + ms, wake };
      this.#sleepers.add(sleeper);
      signal?.addEventListener("abort", wake);
    });
  }

  /** Move on by this time, and let everything happen that is due in it, in its order. */
  async advance(ms: number): Promise<void> {
    const until = this.#now + ms;
    await settled();
    for (;;) {
      const due = [...this.#sleepers].filter(({ at }) => at <= until);
      const [first] = due.sort((one, other) => one.at - other.at);
      if (!first) break;
      this.#now = first.at;
      first.wake();
      await settled();
    }
    this.#now = until;
  }
}

/** Resolves when all that can happen without time has happened. */
export async function settled(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
}

export interface Call {
  host: string;
  operation: string;
  body: any;
  headers: Headers;
}

export type Answers = (call: Call) => unknown;

/** A response with a status; an `Error` is a connection that breaks. */
export function respond(status: number, body: unknown, headers: Record<string, string> = {}) {
  return new Response(JSON.stringify(body), { status, headers });
}

export function problem(status: number, code: string, retryable = false): Partial<Problem> {
  return { status, code, detail: `it is ${code}`, retryable, errors: [], context: {} };
}

export const refused = (status: number, code: string, retryable = false): Response =>
  respond(status, problem(status, code, retryable));

/** A client whose service is a function, and the calls that it got. */
export function fakeService(
  answers: Answers,
  options: Options = {},
): {
  client: EscrowMQ;
  clock: ManualClock;
  calls: Call[];
  operations: () => string[];
} {
  const clock = new ManualClock();
  const calls: Call[] = [];
  const client = new EscrowMQ({
    url: "http://service.test",
    apiKey: "a-key",
    ...options,
    clock,
    fetch: async (request) => {
      const text = await request.text();
      const { host, pathname, search } = new URL(request.url);
      const call = {
        host,
        operation: `${request.method} ${pathname}${search}`,
        body: text ? JSON.parse(text) : undefined,
        headers: request.headers,
      };
      calls.push(call);
      const answer = await Promise.race([answers(call), aborted(request.signal)]);
      if (answer instanceof Error) throw answer;
      return answer instanceof Response ? answer : respond(200, answer);
    },
  });
  return { client, clock, calls, operations: () => calls.map(({ operation }) => operation) };
}

function aborted(signal: AbortSignal): Promise<Error> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(new Error("aborted"));
    signal.addEventListener("abort", () => resolve(new Error("aborted")));
  });
}

/** An answer that never comes. */
export const silence = new Promise<never>(() => undefined);
