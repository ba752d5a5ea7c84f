import type { EscrowMQ } from "./client.js";
import type { Clock } from "./clock.js";
import { ProblemError, RefusedEntries } from "./errors.js";
import { defaultRetry, isTransient, pause } from "./retry.js";

/** Between two reports, so that a service that comes and goes floods no log. */
const QUIET_MS = 30_000;

/** What a request reports while it runs. */
type Observed = { onRetry: (error: unknown) => void };

/**
 * Reports the first failed try of an outage, further ones every 30 seconds while it lasts, and its
 * end. One for all requests of a worker or checker.
 */
export class Outage {
  #begun: number | undefined;
  #reported = -Infinity;
  #isReported = false;

  private constructor(
    private readonly clock: Clock,
    private readonly onError: (error: unknown) => void,
    private readonly onRecovery: (awayMs: number) => void,
  ) {}

  /** Of the requests of a worker or checker, whose name the console has at the end by default. */
  static of(
    client: EscrowMQ,
    name: string,
    onError: (error: unknown) => void,
    onRecovery: ((awayMs: number) => void) | undefined,
  ): Outage {
    const say = (awayMs: number): void => {
      console.info(`${name}: EscrowMQ answers again, after ${Math.round(awayMs)} ms`);
    };
    return new Outage(client.clock, onError, guarded(onRecovery ?? say));
  }

  /** Has a try failed since the last answer? */
  get isOn(): boolean {
    return this.#begun !== undefined;
  }

  /** Send a request, and note whether the service answers its tries. */
  async watch<Result>(request: (call: Observed) => Promise<Result>): Promise<Result> {
    try {
      const result = await request({ onRetry: (error) => this.#failed(error) });
      this.#ended();
      return result;
    } catch (error) {
      if (isTransient(error)) this.#failed(error);
      else if (error instanceof ProblemError || error instanceof RefusedEntries) this.#ended();
      throw error;
    }
  }

  /**
   * Call `once`, which sends one request without repetitions, again and again until the signal
   * aborts, with growing pauses while the service is away. Throws what is not transient.
   */
  async repeat(once: () => Promise<unknown>, signal?: AbortSignal): Promise<void> {
    for (let failures = 0; !signal?.aborted; ) {
      try {
        await once();
        failures = 0;
      } catch (error) {
        if (signal?.aborted) return;
        if (!isTransient(error)) throw error;
        const ms = pause(error, ++failures, defaultRetry, this.clock.random());
        await this.clock.sleep(ms, signal);
      }
    }
  }

  #failed(error: unknown): void {
    const now = this.clock.now();
    this.#begun ??= now;
    if (now - this.#reported < QUIET_MS) return;
    this.#reported = now;
    this.#isReported = true;
    this.onError(error);
  }

  #ended(): void {
    const begun = this.#begun;
    this.#begun = undefined;
    if (begun === undefined || !this.#isReported) return;
    this.#isReported = false;
    this.onRecovery(this.clock.now() - begun);
  }
}

/**
 * A callback of the user that cannot break what calls it: an error of it, or of the promise that it
 * returns, is written to the console.
 */
export function guarded<Args extends unknown[]>(
  callback: (...args: Args) => unknown,
): (...args: Args) => void {
  return (...args) => {
    // Called at once; a synchronous error becomes a rejection, too.
    (async () => callback(...args))().catch((error: unknown) => console.error(error));
  };
}
