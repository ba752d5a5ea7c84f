import { ProblemError, RefusedEntries } from "./errors.js";

interface Waiting<Entry, Result> {
  entry: Entry;
  resolve: (result: Result) => void;
  reject: (error: unknown) => void;
}

const MOST_ENTRIES = 1_000;

/** Sends entries one batch at a time: those that arrive meanwhile are the next one. */
export class Batches<Entry, Result> {
  #waiting: Waiting<Entry, Result>[] = [];
  #isBusy = false;

  constructor(readonly send: (entries: Entry[]) => Promise<{ results: Result[] }>) {}

  /** The result of this entry. A refused one has a problem in it. */
  add(entry: Entry): Promise<Result> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ entry, resolve, reject });
      if (!this.#isBusy) void this.#run();
    });
  }

  async #run(): Promise<void> {
    this.#isBusy = true;
    await null; // what is added in the same turn goes together
    while (this.#waiting.length > 0) await this.#deliver(this.#waiting.splice(0, MOST_ENTRIES));
    this.#isBusy = false;
  }

  /** Send a batch; one that is refused as a whole is halved, down to the entry that is at fault. */
  async #deliver(batch: Waiting<Entry, Result>[]): Promise<void> {
    try {
      const results = await this.#results(batch.map(({ entry }) => entry));
      batch.forEach(({ resolve }, index) => resolve(results[index] as Result));
    } catch (error) {
      if (batch.length === 1 || !isMalformed(error)) {
        return batch.forEach(({ reject }) => reject(error));
      }
      const half = Math.ceil(batch.length / 2);
      await this.#deliver(batch.slice(0, half));
      await this.#deliver(batch.slice(half));
    }
  }

  async #results(entries: Entry[]): Promise<Result[]> {
    try {
      return (await this.send(entries)).results;
    } catch (error) {
      if (!(error instanceof RefusedEntries)) throw error;
      return error.answer.results as Result[];
    }
  }
}

/** Was a request refused for what is in its body, which may be one of its entries? */
function isMalformed(error: unknown): boolean {
  return error instanceof ProblemError && [400, 413, 422].includes(error.status);
}
