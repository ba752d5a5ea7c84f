/** Time, pauses and chance, which tests replace. */
export interface Clock {
  /** Milliseconds since some fixed point; never set back. */
  now(): number;
  /** A number from 0 up to, but not including, 1. */
  random(): number;
  /** Resolves after `ms` milliseconds, or as soon as the signal aborts. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

/** The longest delay of a timer of Node, 24 days; with a longer one it would end at once. */
const MAX_MS = 2 ** 31 - 1;

/** The time of this process. */
export const systemClock: Clock = {
  now: () => performance.now(),
  random: () => Math.random(),
  sleep: (ms, signal) =>
    new Promise((resolve) => {
      if (signal?.aborted) return resolve();
      const done = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", done);
        resolve();
      };
      const timer = setTimeout(done, Math.min(ms, MAX_MS));
      signal?.addEventListener("abort", done);
    }),
};

/** A controller that aborts with any of the signals, until `release` is called. */
export function linked(...signals: (AbortSignal | null | undefined)[]): {
  controller: AbortController;
  release: () => void;
} {
  const controller = new AbortController();
  const releases: (() => void)[] = [];
  for (const signal of signals) {
    if (!signal) continue;
    const abort = (): void => controller.abort(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort);
    releases.push(() => signal.removeEventListener("abort", abort));
  }
  return { controller, release: () => releases.forEach((release) => release()) };
}
