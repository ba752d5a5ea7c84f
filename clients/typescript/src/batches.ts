import { RefusedEntries } from "./errors.js";

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
    while (this.#waiting.length > 0) {
      const batch = this.#waiting.splice(0, MOST_ENTRIES);
      try {
        const results = await this.#results(batch.map(({ entry }) => entry));
        batch.forEach(({ resolve }, index) => resolve(results[index] as Result));
      } catch (error) {
        batch.forEach(({ reject }) => reject(error));
      }
    }
    this.#isBusy = false;
  }

  async #results(entries: Entry[]): Promise<Result[]> {
    try {
      return (await this.send(entries)).results;
    } catch (error) {
      if (!(error instanceof RefusedEntries)) throw error;
      return (error.answer as { results: Result[] }).results;
    }
  }
}
