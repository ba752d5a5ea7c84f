import { isReplica, primaryOf } from "./addresses.js";
import type { Clock } from "./clock.js";
import { ProblemError, Unreachable } from "./errors.js";

/** How long a request is repeated. `totalMs: 0` repeats none. */
export interface Retry {
  /** Time after which no further try begins. */
  totalMs: number;
  /** Upper limit of the first pause; each further one is up to twice as long. */
  firstMs: number;
  /** Upper limit of all pauses. */
  maxMs: number;
}

export const defaultRetry: Retry = { totalMs: 30_000, firstMs: 100, maxMs: 5_000 };

/** How often in a row a call goes at once where a replica leads it. */
export const MOST_HOPS = 3;

const NEVER = new Set(["reply_timeout"]);
const REVISION_MISMATCH = "revision_mismatch";

/**
 * Is a request that failed like this sent again? The one rule, for every operation. One that acts
 * each time that it is carried out (`isSentOnce`) is not, where that may have happened.
 */
export function isTransient(error: unknown, isSentOnce = false): boolean {
  if (error instanceof Unreachable) return !isSentOnce || !error.outcomeUnknown;
  if (!(error instanceof ProblemError) || NEVER.has(error.code)) return false;
  if (error.retryable || isReplica(error)) return true;
  return !isSentOnce && (error.status === 429 || error.status === 503);
}

/** The pause after the given number of tries: what the service asks for, or a random part. */
export function pause(error: unknown, tries: number, retry: Retry, random: number): number {
  const limit = Math.min(retry.maxMs, retry.firstMs * 2 ** (tries - 1));
  const wanted = error instanceof ProblemError ? (error.retryAfterMs ?? 0) : 0;
  return Math.max(wanted, random * limit);
}

/**
 * The error of a change of one revision (`If-Match`) which is another one by now, although an
 * earlier try, whose answer was lost, may have made the change. Any other error is as it was.
 */
function withLost(error: unknown, lost: Unreachable | undefined): unknown {
  if (!lost || !(error instanceof ProblemError) || error.code !== REVISION_MISMATCH) return error;
  const sent = `${lost.message}; sent again: ${error.message}`;
  const message = `${sent}; this call has made the change, or another one has`;
  return new Unreachable(message, { cause: error, outcomeUnknown: true });
}

/**
 * Has a call that removes something done so, although this try did not find it? An earlier one,
 * whose answer was lost, may have removed it.
 */
function isRemoved(error: unknown, lost: Unreachable | undefined): boolean {
  const isNothing = error instanceof ProblemError && error.status === 404;
  return lost !== undefined && isNothing && error.code !== "http_404"; // of a proxy
}

interface Repetition {
  retry: Retry;
  isSentOnce: boolean;
  /** It removes something, and has no other result. */
  onlyRemoves: boolean;
  mostHops: number;
  /** Of the addresses, behind so many tries. */
  rounds: (tries: number) => number;
  clock: Clock;
  signal?: AbortSignal | null | undefined;
  /** Takes the error of each try that is repeated. */
  onRetry?: ((error: unknown) => void) | undefined;
}

/**
 * The result of the first try that does not fail in a way that is worth repeating; nothing where it
 * is a removal that an earlier try has made.
 */
export async function retrying<Result>(
  once: () => Promise<Result>,
  { retry, isSentOnce, onlyRemoves, mostHops, rounds, clock, signal, onRetry }: Repetition,
): Promise<Result | undefined> {
  const deadline = clock.now() + retry.totalMs;
  let hops = 0;
  let lost: Unreachable | undefined;
  for (let tries = 1; ; tries++) {
    try {
      return await once();
    } catch (error) {
      if (error instanceof Unreachable && error.outcomeUnknown) lost = error;
      if (isReplica(error) && primaryOf(error) && hops < mostHops) {
        hops++;
        tries--;
        signal?.throwIfAborted();
        continue;
      }
      hops = 0;
      const ms = pause(error, rounds(tries), retry, clock.random());
      if (!isTransient(error, isSentOnce) || clock.now() + ms >= deadline) {
        if (onlyRemoves && isRemoved(error, lost)) return undefined;
        throw withLost(error, lost);
      }
      onRetry?.(error);
      await clock.sleep(ms, signal ?? undefined);
      signal?.throwIfAborted();
    }
  }
}
