import { ProblemError, Unreachable } from "./errors.js";

/** With these a machine says that another one may be the service by now. */
const MOVING = new Set(["recovering", "shutting_down"]);

/**
 * Addresses of one service: of the machine that takes requests, and of its replicas. All requests
 * go to one until it fails; then to the next of the list, or where a replica leads.
 */
export class Addresses {
  readonly #list: string[];
  #now: string;
  #at = 0; // the last one of the list that was taken

  /** `text`: URLs with commas between them. Throws where one is none. */
  constructor(text: string) {
    this.#list = text
      .split(",")
      .map((one) => one.trim().replace(/\/+$/, ""))
      .filter(Boolean);
    for (const one of this.#list) {
      const { protocol } = new URL(one); // throws where it is not one
      if (!/^https?:$/.test(protocol))
        throw new TypeError(`url needs http:// or https://, not ${protocol}`);
    }
    const [first] = this.#list;
    if (first === undefined) throw new TypeError("url has no address");
    this.#now = first;
  }

  /** Where requests go. */
  get now(): string {
    return this.#now;
  }

  /**
   * How often the addresses have had their turn behind so many tries, begun ones included. Waits
   * grow with it: those that are left in a round may answer.
   */
  rounds(tries: number): number {
    return Math.ceil(tries / this.#list.length);
  }

  /** Take another address, where a request that went to `asked` failed so that it may help. */
  note(error: unknown, asked: string): void {
    if (asked !== this.#now) return; // another request has seen it
    if (isReplica(error)) this.#now = allowed(primaryOf(error), asked) ?? this.#next();
    else if (error instanceof Unreachable || isMoving(error)) this.#now = this.#next();
  }

  /** The next one of the list that is not asked now; the same one where it has no other. */
  #next(): string {
    for (let turn = 0; turn < this.#list.length; turn++) {
      this.#at = (this.#at + 1) % this.#list.length;
      if (this.#list[this.#at] !== this.#now) break;
    }
    return this.#list[this.#at] as string;
  }
}

/** Did a replica refuse the request? Nothing of it was carried out then. */
export function isReplica(error: unknown): boolean {
  return error instanceof ProblemError && error.code === "not_primary";
}

/** The address of the service, as the replica knows it. */
export function primaryOf(error: unknown): string | undefined {
  if (!(error instanceof ProblemError)) return undefined;
  const { primary } = error.context as { primary?: unknown };
  return typeof primary === "string" && primary ? primary : undefined;
}

function isMoving(error: unknown): boolean {
  return error instanceof ProblemError && MOVING.has(error.code);
}

/** The URL that a replica has named; nothing where the key must not be sent there. */
function allowed(primary: string | undefined, replica: string): string | undefined {
  const beginnings = replica.startsWith("https:") ? ["https://"] : ["https://", "http://"];
  if (!primary || !beginnings.some((one) => primary.startsWith(one))) return undefined;
  try {
    new URL(primary);
  } catch {
    return undefined;
  }
  return primary.replace(/\/+$/, "");
}
