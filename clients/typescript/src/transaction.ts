import { type CallOptions, newId } from "./api.js";
import type { EscrowMQ } from "./client.js";
import {
  CommitPending,
  EscrowMQError,
  Fenced,
  IdTaken,
  NotCommitted,
  NotMarked,
  ProblemError,
} from "./errors.js";
import type { Markers, MarkerStore, Outcome, SyncMarkerStore } from "./markers.js";
import { isTransient } from "./retry.js";
import type { MessageInput, Schemas } from "./schemas.js";

export interface TransactionOptions<Store extends Markers = Markers> {
  /** Without it, one is made. With it, the same work can be repeated after a crash. */
  id?: string | undefined;
  markers?: Store | undefined;
  businessKey?: string | undefined;
  check?: Schemas["CheckInput"] | undefined;
  /** How long to look up the marker at the end, before the outcome is left to a check. */
  outcomeMs?: number | undefined;
}

const OUTCOME_MS = 5_000;
/** A begin is repeated for so long while the local transaction is open. */
const SOON = { retry: { totalMs: 5_000 }, timeoutMs: 5_000 };
const NOT_AWAITED = "returned while its mark was under way: tx.mark was not awaited";
const UNDECIDED: readonly string[] = ["prepared", "held"];
// The key of a begin is made of its id, and is forgotten sooner than the transaction.
const TAKEN: readonly string[] = ["idempotency_key_reused", "transaction_exists"];

/** The messages of one transaction, and its marker in the local one. */
export class Transaction<Db = never> {
  readonly #messages: Schemas["TransactionMessageInput"][] = [];
  #begun: Promise<void> | undefined;
  #mayExist = false;
  #mark: "none" | "open" | "inserted" | "failed" = "none";
  #failure: unknown;
  #hasEnded = false;

  constructor(
    private readonly client: EscrowMQ,
    private readonly producerGroup: string,
    private readonly options: TransactionOptions,
    readonly id: string,
  ) {}

  get isEmpty(): boolean {
    return this.#messages.length === 0;
  }

  /** Does the service have this transaction, as far as is known? */
  get mayExist(): boolean {
    return this.#mayExist;
  }

  /** Was `mark` called? Then the local transaction decides. */
  get isMarked(): boolean {
    return this.#mark !== "none";
  }

  /** Why the last mark failed, if it did. */
  get failure(): unknown {
    return this.#failure;
  }

  /** Insert no mark any more, as the work has ended; is one still under way? */
  end(): boolean {
    this.#hasEnded = true;
    return this.#mark === "open";
  }

  /**
   * Add a message. All are added before `begin` and `mark`. Throws a `TypeError` if it is no JSON:
   * a BigInt, for example, or an object that contains itself.
   */
  add(topic: string, message: MessageInput): void {
    if (this.#begun) throw new EscrowMQError("add all messages before begin and mark");
    JSON.stringify(message); // here, where the local transaction may not have begun
    this.#messages.push({ topic, message });
  }

  /**
   * Begin at the service: the messages are stored, and no consumer sees them. Call it before the
   * local transaction, so that this is not open meanwhile; `mark` or `markSync` follows, or a
   * marker of your own.
   */
  begin(): Promise<void> {
    if (this.isEmpty) return Promise.resolve();
    this.#begun ??= this.#begin();
    return this.#begun;
  }

  /**
   * Insert the marker row in the local transaction, and begin at the service first, unless `begin`
   * has: then for a few seconds only, as the local transaction is open meanwhile.
   */
  mark(db: Db): Promise<void> {
    if (this.isEmpty) return Promise.resolve();
    const markers = this.#markers() as Markers & Partial<MarkerStore<Db>>;
    if (!markers.mark) throw new EscrowMQError("these markers have markSync only");
    this.#mark = "open";
    const inserted = this.#insert(markers as MarkerStore<Db>, db);
    inserted.catch(() => undefined); // where it is not awaited, the end of the work says so
    return inserted;
  }

  async #insert(markers: MarkerStore<Db>, db: Db): Promise<void> {
    this.#failure = undefined;
    try {
      this.#begun ??= this.#begin(SOON);
      await this.#begun;
      // The connection may be that of another transaction by now.
      if (this.#hasEnded) throw new NotMarked(this.id, NOT_AWAITED);
      await markers.mark(db, this.id);
      this.#mark = "inserted";
    } catch (error) {
      this.#mark = "failed";
      this.#failure = error;
      throw error;
    }
  }

  /** Insert the marker row, after `begin`, by a database whose statements run at once. */
  markSync(db: Db): void {
    if (this.isEmpty) return;
    const markers = this.#markers() as Markers & Partial<SyncMarkerStore<Db>>;
    if (!markers.markSync) throw new EscrowMQError("these markers have no markSync");
    if (!this.#mayExist) throw new EscrowMQError("await tx.begin() before tx.markSync()");
    this.#mark = "failed";
    markers.markSync(db, this.id);
    this.#mark = "inserted";
  }

  /** The outcome that the markers give; undefined without any, or if they take too long. */
  async outcome(): Promise<Outcome | undefined> {
    const { markers, outcomeMs = OUTCOME_MS } = this.options;
    if (!markers) return undefined;
    const done = new AbortController();
    const late = this.client.clock.sleep(outcomeMs, done.signal).then(() => undefined);
    const found = markers.outcome(this.id).catch(() => undefined);
    const outcome = await Promise.race([found, late]);
    done.abort();
    return outcome;
  }

  async #begin(call: CallOptions = {}): Promise<void> {
    const { businessKey, check, id: given } = this.options;
    const body = {
      producer_group: this.producerGroup,
      transaction_id: this.id,
      messages: this.#messages,
      ...(businessKey === undefined ? {} : { business_key: businessKey }),
      ...(check === undefined ? {} : { check }),
    };
    this.#mayExist = true;
    try {
      // With an id of the caller's, the begin of an earlier run is found by the same key.
      const key = given === undefined ? {} : { idempotencyKey: `begin-${this.id}` };
      const { state, resolved_by } = await this.client.begin(body, { ...key, ...call });
      if (!UNDECIDED.includes(state)) {
        const outcome = state === "committed" ? "commit" : "rollback";
        throw new Fenced(this.id, undefined, outcome, resolved_by);
      }
    } catch (error) {
      if (error instanceof ProblemError && TAKEN.includes(error.code)) {
        this.#mayExist = false; // with these messages
        throw new IdTaken(this.id, error.context["state"], error);
      }
      const isRefused = error instanceof ProblemError && error.status < 500;
      if (isRefused && !isTransient(error)) this.#mayExist = false;
      throw error;
    }
  }

  #markers(): Markers {
    if (!this.options.markers) throw new EscrowMQError("give the transaction its markers");
    return this.options.markers;
  }
}

/** A transaction whose local one is awaited. */
export type MarkedTransaction<Db = never> = Omit<Transaction<Db>, "markSync" | "end" | "failure">;
/** A transaction whose local one does not wait for anything. */
export type SyncTransaction<Db> = Omit<Transaction<Db>, "mark" | "end" | "failure">;

export async function runTransaction<Db, Result>(
  client: EscrowMQ,
  producerGroup: string,
  options: TransactionOptions,
  work: (tx: Transaction<Db>) => Promise<Result>,
): Promise<Result> {
  const tx = new Transaction<Db>(client, producerGroup, options, options.id ?? newId());
  let result;
  try {
    result = await work(tx);
  } catch (error) {
    tx.end();
    const outcome = tx.mayExist ? await tx.outcome() : undefined;
    const decision = await settle(client, tx.id, outcome);
    if (error instanceof Fenced && outcome && !error.outcome) {
      // A first decision leaves open who inserted the marker.
      error.decided(outcome, decision?.replayed ? decision.resolved_by : undefined);
    }
    throw error;
  }
  const isMarking = tx.end();
  if (tx.isEmpty) return result;
  if (options.markers) {
    if (isMarking || !tx.isMarked) {
      if (tx.mayExist) await settle(client, tx.id, await tx.outcome());
      throw new NotMarked(tx.id, isMarking ? NOT_AWAITED : undefined);
    }
    // The work may have rolled back, or a driver may have hidden that the database did.
    const outcome = await tx.outcome();
    if (outcome === undefined) throw new CommitPending(tx.id);
    if (outcome === "rollback") {
      await settle(client, tx.id, outcome);
      throw new NotCommitted(tx.id, tx.failure);
    }
  }
  await tx.begin();
  try {
    await client.commit(tx.id);
  } catch (error) {
    // Any other failure leaves the transaction open, and a check finds the work done.
    throw isDecided(error) ? error : new CommitPending(tx.id, error);
  }
  return result;
}

/** Does the service say that it is rolled back, or that it does not have it any more? */
function isDecided(error: unknown): boolean {
  return error instanceof ProblemError && [404, 409, 410].includes(error.status);
}

/** Send an outcome once. If that fails, or the outcome is unknown, a check decides. */
async function settle(
  client: EscrowMQ,
  id: string,
  outcome: Outcome | undefined,
): Promise<Schemas["Decision"] | undefined> {
  const once = { retry: { totalMs: 0 } };
  try {
    if (outcome === "commit") return await client.commit(id, once);
    if (outcome === "rollback") return await client.rollback(id, once);
  } catch (error) {
    if (!(error instanceof EscrowMQError)) throw error;
  }
  return undefined;
}
