import { type CallOptions, newId } from "./api.js";
import { Batches } from "./batches.js";
import type { EscrowMQ } from "./client.js";
import { type Clock, linked } from "./clock.js";
import { EscrowMQError, LeaseLost, ProblemError } from "./errors.js";
import { guarded, Outage } from "./outage.js";
import { asLine, asReason, textOf } from "./reason.js";
import { isTransient } from "./retry.js";
import type { ReceivedMessage, Schemas } from "./schemas.js";

/** Thrown by a handler: deliver the message again, after a pause instead of the group's own. */
export class Redeliver extends EscrowMQError {
  override name = "Redeliver";
  constructor(
    readonly afterMs?: number,
    reason = "the handler asks for another delivery",
  ) {
    super(reason);
  }
}

/** Thrown by a handler: move the message to the dead letters. */
export class DeadLetter extends EscrowMQError {
  override name = "DeadLetter";
}

/** Why the signal of a handler aborts when its worker stops. */
class Stopped extends EscrowMQError {
  override name = "Stopped";
}

/**
 * Processes one message. It is acknowledged when the promise resolves. `signal` aborts when the
 * lease is lost, or when the worker has to stop: give up then, as the message is delivered again.
 */
export type Handler = (
  message: ReceivedMessage,
  context: { signal: AbortSignal },
) => Promise<unknown>;

export interface WorkerOptions {
  /** Number of messages that are processed at the same time. */
  concurrency?: number | undefined;
  /** Lease of a message; without it, that of the group. It is extended at a third. */
  leaseMs?: number | undefined;
  /** Time from the receive after which a lease is extended no more. */
  maxLeaseMs?: number | undefined;
  /** How long one request waits for messages. */
  waitMs?: number | undefined;
  /** After a stop: how long handlers may still run. */
  shutdownMs?: number | undefined;
  /** Name of this worker, which traces show. */
  name?: string | undefined;
  /**
   * Takes what went wrong, with the message if it is about one; not `DeadLetter`, and `Redeliver`
   * only on the last attempt, where it has no effect. An outage of the service is reported at its
   * first failed try, then every 30 seconds. Without it: to the console.
   */
  onError?: ((error: unknown, message?: ReceivedMessage) => void) | undefined;
  /** Takes the duration of an outage when the service answers again. Without it: to the console. */
  onRecovery?: ((awayMs: number) => void) | undefined;
}

/** The options with their defaults. */
interface Settings {
  concurrency: number;
  leaseMs: number | undefined;
  maxLeaseMs: number;
  waitMs: number;
  shutdownMs: number;
  name: string | undefined;
}

type SettleResult = Schemas["SettleResult"];
type Rules = Pick<Schemas["Group"], "ordered" | "max_attempts" | "dead_letter">;

/** A message from its receive until it is settled, or its lease is lost. */
interface Delivery {
  message: ReceivedMessage;
  /** Of the handler. */
  controller: AbortController;
  /** Aborts when nothing is to be done for the lease any more. */
  settled: AbortController;
  /** Is its result on the way to the service? */
  isSettling: boolean;
  /** Was its handler called? If not, its attempt does not count. */
  hasBegun: boolean;
  done: Promise<boolean>;
}

const MAX_REASON = 500;
/** After a stop and the time of the handlers: for the last answers of the service. */
const GIVING_BACK_MS = 2_000;
const ONCE = { totalMs: 0 };
const DELIVERED_AGAIN = "it is delivered again";

/** Receives the messages of a group and gives each to a handler under a lease. */
export class Worker {
  readonly counts = { received: 0, acknowledged: 0, rejected: 0, deadLettered: 0, lost: 0 };
  readonly #options: Settings;
  readonly #clock: Clock;
  /** Takes what went wrong, and what happens next. */
  readonly #report: (error: unknown, message: ReceivedMessage | undefined, next: string) => void;
  readonly #hasConsole: boolean;
  readonly #outage: Outage;
  readonly #stop = new AbortController();
  readonly #stopNow = new AbortController();
  /** Ends the requests that are left when the time after a stop is over. */
  readonly #leave = new AbortController();
  readonly #deliveries = new Set<Delivery>();
  /** The last message of each key whose messages are processed one after another. */
  readonly #lastOfKey = new Map<string, Promise<boolean>>();
  readonly #acks: Batches<Schemas["AckEntry"], SettleResult>;
  readonly #nacks: Batches<Schemas["NackEntry"], SettleResult>;
  readonly #deadLetters: Batches<Schemas["DeadLetterEntry"], SettleResult>;
  #wake = new AbortController();
  #hasRun = false;
  #hasEnded = false;
  /** Of the group; undefined until the service says them. */
  #rules: Rules | undefined;
  /** Of a receive and its repetitions: with it, what a lost answer leased is received again. */
  #attemptId = newId();
  #lastReceive: number;

  constructor(
    readonly client: EscrowMQ,
    readonly group: string,
    readonly handler: Handler,
    options: WorkerOptions = {},
  ) {
    const { concurrency = 16 } = options;
    if (!Number.isInteger(concurrency) || concurrency < 1) {
      throw new RangeError(`concurrency is an integer of 1 or more, not ${concurrency}`);
    }
    this.#options = {
      concurrency,
      leaseMs: options.leaseMs,
      maxLeaseMs: options.maxLeaseMs ?? 3_600_000,
      waitMs: options.waitMs ?? 20_000,
      shutdownMs: options.shutdownMs ?? 25_000,
      name: options.name,
    };
    this.#clock = client.clock;
    const { onError } = options;
    // Also the console may throw: at an error whose name or stack cannot be written.
    this.#report = onError
      ? guarded((error, message) => onError(error, message))
      : guarded((error, message, next) => this.#print(error, message, next));
    this.#hasConsole = !onError;
    const onOutage = (error: unknown): void => this.#report(error, undefined, "it is tried again");
    this.#outage = Outage.of(client, `group ${group}`, onOutage, options.onRecovery);
    this.#lastReceive = this.#clock.now();
    const { signal } = this.#leave;
    const watch = <Result>(request: (call: CallOptions) => Promise<Result>): Promise<Result> =>
      this.#outage.watch((call) => request({ ...call, signal }));
    this.#acks = new Batches((entries) => watch((call) => client.ack(group, entries, call)));
    this.#nacks = new Batches((entries) => watch((call) => client.nack(group, entries, call)));
    this.#deadLetters = new Batches((entries) =>
      watch((call) => client.deadLetter(group, entries, call)),
    );
  }

  /**
   * Work until the signal aborts or `stop` is called, then until the handlers are done. While the
   * service is away, it is tried again. Throws what cannot become better by itself, such as a group
   * that does not exist, after the handlers are done.
   */
  async run({ signal }: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    if (this.#hasRun) throw new EscrowMQError("run was called before; make another worker");
    this.#hasRun = true;
    const stop = (): void => this.#stop.abort();
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) stop();
    try {
      await this.#outage.repeat(() => this.#receive(this.#options.waitMs), this.#stop.signal);
    } finally {
      await this.#drain();
      this.#hasEnded = true;
      signal?.removeEventListener("abort", stop);
    }
  }

  /**
   * Process the messages that are available now, instead of `run`; their number. For tests and
   * scheduled jobs, which may call it again. A message that is rejected counts each time that it
   * comes.
   */
  async runUntilIdle(): Promise<number> {
    if (this.#hasRun) throw new EscrowMQError("run was called before; make another worker");
    const before = this.counts.received;
    for (let known = -1; known < this.counts.received; ) {
      known = this.counts.received;
      await this.#receive(0);
      await this.#finished();
    }
    return this.counts.received - before;
  }

  /** Stop receiving; with `now`, also stop the handlers. */
  stop({ now = false } = {}): void {
    this.#stop.abort();
    if (now) this.#stopNow.abort();
  }

  /** Has `run` not ended, and was a receive answered in this time, or are all handlers busy? */
  healthy(maxSilenceMs = 60_000): boolean {
    if (this.#hasEnded) return false;
    if (this.#deliveries.size >= this.#options.concurrency) return true;
    return this.#clock.now() - this.#lastReceive <= maxSilenceMs;
  }

  /** Receive messages for the handlers that are free, when one is, and start these. */
  async #receive(waitMs: number): Promise<void> {
    const { signal } = this.#stop;
    const free = await this.#free();
    if (signal.aborted) return;
    const { leaseMs, name } = this.#options;
    const received = await this.#outage.watch(async () => {
      const once = { signal, retry: ONCE };
      this.#rules ??= await this.#getRules(once);
      const wanted = {
        attempt_id: this.#attemptId,
        max_messages: Math.min(free, 1_000),
        wait_ms: this.#outage.isOn ? 0 : waitMs, // to learn at once that the outage is over
        ...(leaseMs === undefined ? {} : { lease_ms: leaseMs }),
        ...(name === undefined ? {} : { worker: name }),
      };
      return this.client.receive(this.group, wanted, once);
    });
    this.#attemptId = newId();
    this.#lastReceive = this.#clock.now();
    for (const message of received.messages) this.#start(message, received.server_time);
  }

  /** The number of handlers that are free, when one is or the worker stops. */
  async #free(): Promise<number> {
    for (;;) {
      const free = this.#options.concurrency - this.#deliveries.size;
      if (free > 0 || this.#stop.signal.aborted) return free;
      this.#wake = new AbortController();
      const { controller, release } = linked(this.#stop.signal, this.#wake.signal);
      await aborted(controller.signal);
      release();
    }
  }

  #getRules(call: CallOptions): Promise<Rules> {
    const params = { path: { group: this.group } };
    return this.client.api.GET("/v1/groups/{group}", { params, ...call });
  }

  #start(message: ReceivedMessage, serverTime: string): void {
    const delivery: Delivery = {
      message,
      controller: new AbortController(),
      settled: new AbortController(),
      isSettling: false,
      hasBegun: false,
      done: Promise.resolve(false),
    };
    this.counts.received++;
    this.#deliveries.add(delivery);
    void this.#extend(delivery, Date.parse(message.lease_expires_at) - Date.parse(serverTime));
    const queue = `${message.topic} ${message.queue_id}`;
    const key = this.#rules?.ordered ? (message.ordering_key ?? queue) : undefined;
    const before = key === undefined ? undefined : this.#lastOfKey.get(key);
    delivery.done = this.#process(delivery, before).finally(() => {
      this.#deliveries.delete(delivery);
      this.#wake.abort();
      if (key === undefined || this.#lastOfKey.get(key) !== delivery.done) return;
      this.#lastOfKey.delete(key);
    });
    if (key !== undefined) this.#lastOfKey.set(key, delivery.done);
  }

  /** Run the handler and settle the message; was it acknowledged? */
  async #process(delivery: Delivery, before: Promise<boolean> | undefined): Promise<boolean> {
    const { message, controller, settled } = delivery;
    let failure: { error: unknown } | undefined;
    try {
      if (before && !(await before))
        throw new Redeliver(0, "an earlier message is not acknowledged");
      controller.signal.throwIfAborted();
      delivery.hasBegun = true;
      await this.handler(message, { signal: controller.signal });
    } catch (error) {
      failure = { error };
    }
    // A handler may end after its lease was lost or given back: then nothing is to be settled.
    if (settled.signal.aborted) return false;
    delivery.isSettling = true;
    if (failure) return this.#reject(delivery, failure.error);
    const { receipt_handle } = message;
    return this.#settle(delivery, "acknowledged", this.#acks.add({ receipt_handle }));
  }

  async #reject(delivery: Delivery, error: unknown): Promise<false> {
    const { message, hasBegun } = delivery;
    const { receipt_handle } = message;
    // A reason of the handler's own as it is; of another error also its class.
    const isChosen = error instanceof Redeliver || error instanceof DeadLetter;
    const said = textOf(isChosen ? error.message : error);
    const entry = { receipt_handle, reason: asReason(said, MAX_REASON) };
    const end = this.#rules?.dead_letter === false ? "it is dropped" : "it becomes a dead letter";
    if (error instanceof DeadLetter) {
      if (this.#hasConsole) this.#print(error, message, end);
      await this.#settle(delivery, "deadLettered", this.#deadLetters.add(entry));
      return false;
    }
    const isLast = hasBegun && message.attempt >= (this.#rules?.max_attempts ?? Infinity);
    const next = isLast ? `it was the last attempt, so ${end}` : DELIVERED_AGAIN;
    if (isLast || !isChosen) this.#report(error, message, next);
    const afterMs = error instanceof Redeliver ? error.afterMs : undefined;
    const delay = afterMs === undefined ? {} : { delay_ms: afterMs };
    const rejection = { ...entry, ...delay, ...unprocessed(delivery) };
    await this.#settle(delivery, "rejected", this.#nacks.add(rejection));
    return false;
  }

  /** Count what was sent for a message, or report that it was refused; was it accepted? */
  async #settle(
    { message, settled }: Delivery,
    count: "acknowledged" | "rejected" | "deadLettered",
    sent: Promise<SettleResult>,
  ): Promise<boolean> {
    try {
      const { problem } = await sent;
      if (!problem) {
        this.counts[count]++;
        return true;
      }
      this.counts.lost++;
      // A rejection that is repeated after a lost answer is refused, too: nothing went wrong.
      if (count !== "acknowledged" && problem.code === "lease_expired") return false;
      const cause = new ProblemError(problem, problem.status);
      const refused = new LeaseLost(`not ${count}: ${problem.detail}`, { cause });
      this.#report(refused, message, DELIVERED_AGAIN);
    } catch (error) {
      this.#report(error, message, "it is delivered again when its lease ends");
    } finally {
      settled.abort();
    }
    return false;
  }

  /** Extend the lease at a third of it, until the message is settled or the lease is lost. */
  async #extend(delivery: Delivery, leaseMs: number): Promise<void> {
    const { message, settled } = delivery;
    const { signal } = settled;
    const last = this.#clock.now() + this.#options.maxLeaseMs;
    const entries = [{ receipt_handle: message.receipt_handle, lease_ms: leaseMs }];
    let ends = this.#clock.now() + leaseMs;
    for (;;) {
      const now = this.#clock.now();
      await this.#clock.sleep(now >= last ? ends - now : Math.min(leaseMs / 3, ends - now), signal);
      if (signal.aborted) return;
      const begun = this.#clock.now();
      if (begun >= ends) {
        if (delivery.isSettling) return; // the answer to its settlement says whether it was lost
        return this.#lose(delivery, new LeaseLost("the lease has ended"));
      }
      if (begun >= last) continue;
      const ms = Math.min(leaseMs / 3, ends - begun); // of one try, and of all of them
      try {
        const limits = { retry: { totalMs: ms }, timeoutMs: ms, signal };
        await this.#outage.watch((call) =>
          this.client.extend(this.group, entries, { ...limits, ...call }),
        );
        ends = begun + leaseMs;
      } catch (error) {
        if (signal.aborted) return;
        if (!isTransient(error)) {
          if (delivery.isSettling) return; // it was settled meanwhile, as its own answer says
          const lost = new LeaseLost("the lease was not extended", { cause: error });
          return this.#lose(delivery, lost);
        }
      }
    }
  }

  #lose({ message, controller, settled }: Delivery, error: LeaseLost): void {
    this.counts.lost++;
    settled.abort();
    controller.abort(error);
    this.#report(error, message, DELIVERED_AGAIN);
  }

  /**
   * Wait for the handlers; those that take too long are stopped and their messages given back. A
   * service that is away does not keep the worker from its end.
   */
  async #drain(): Promise<void> {
    this.#stop.abort();
    const finished = new AbortController();
    const patience = linked(this.#stopNow.signal, finished.signal);
    const late = this.#clock.sleep(this.#options.shutdownMs, patience.controller.signal);
    await Promise.race([this.#finished(), late]);
    finished.abort();
    patience.release();
    const left = [...this.#deliveries].map(async (delivery) => {
      const { message, controller, settled } = delivery;
      if (delivery.isSettling) return delivery.done;
      if (settled.signal.aborted) return false;
      settled.abort();
      const stopped = new Stopped("the worker stopped");
      controller.abort(stopped);
      const { receipt_handle } = message;
      const reason = stopped.message;
      const entry = { receipt_handle, delay_ms: 0, reason, ...unprocessed(delivery) };
      return this.#settle(delivery, "rejected", this.#nacks.add(entry));
    });
    const given = new AbortController();
    void this.#clock.sleep(GIVING_BACK_MS, given.signal).then(() => {
      this.#leave.abort(new Stopped(`the worker stopped: no answer in ${GIVING_BACK_MS} ms`));
    });
    await Promise.all(left);
    given.abort();
  }

  /** Write to the console what went wrong: one line, and the stack of an error of the handler. */
  #print(error: unknown, message: ReceivedMessage | undefined, next: string): void {
    const at = `group ${this.group}`;
    if (!message) return console.error(`${at}: ${asLine(error)}; ${next}`);
    const { message_id, topic, key, attempt } = message;
    const attempts = `attempt ${attempt} of ${this.#rules?.max_attempts}`;
    const which = key === undefined ? attempts : `key ${key}, ${attempts}`;
    const about = `${at}: message ${message_id} of topic ${topic} (${which})`;
    if (error instanceof EscrowMQError) return console.error(`${about}: ${asLine(error)}; ${next}`);
    console.error(`${about}: the handler failed; ${next}\n`, error);
  }

  async #finished(): Promise<void> {
    while (this.#deliveries.size > 0) {
      this.#wake = new AbortController();
      await aborted(this.#wake.signal);
    }
  }
}

/** The field of a rejection for a message whose handler was not called. */
function unprocessed({ hasBegun }: Delivery): { unprocessed?: true } {
  return hasBegun ? {} : { unprocessed: true };
}

/** Resolves when the signal aborts. */
function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    signal.addEventListener("abort", () => resolve(), { once: true });
  });
}
