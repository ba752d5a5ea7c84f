import { Addresses } from "./addresses.js";
import { type Api, type CallOptions, newApi } from "./api.js";
import { type Clock, systemClock } from "./clock.js";
import { defaultRetry, type Retry } from "./retry.js";
import type { MessageInput, Schemas } from "./schemas.js";
import type { MarkerStore, SyncMarkerStore } from "./markers.js";
import {
  type MarkedTransaction,
  runTransaction,
  type SyncTransaction,
  type Transaction,
  type TransactionOptions,
} from "./transaction.js";

export interface Options {
  /**
   * Address of the service. Addresses of several machines, the service and its replicas, have
   * commas between them: requests go to the one that is the service. Without it, the environment
   * variable ESCROWMQ_URL.
   */
  url?: string | undefined;
  /** Without it, the environment variable ESCROWMQ_API_KEY, if there is one. */
  apiKey?: string | undefined;
  /** How long requests are repeated: what is not given is that of `defaultRetry`. */
  retry?: Partial<Retry> | undefined;
  /**
   * Time without any sign of the service after which a try of a request ends, beside the time that
   * the request asks it to wait: 10 s by default. Another try begins, at the next address.
   */
  timeoutMs?: number | undefined;
  /** Sends the requests: for a proxy, certificates of your own, or a test. */
  fetch?: ((request: Request) => Promise<Response>) | undefined;
  /** For tests, which move its time. */
  clock?: Clock | undefined;
}

export interface RequestOptions {
  /** Time in which the consumer may reply. */
  timeoutMs?: number | undefined;
  signal?: AbortSignal | undefined;
}

/** A client of one service. It holds no connection and starts nothing by itself. */
export class EscrowMQ {
  /** Every operation by its method and path: `client.api.GET("/v1/topics")`. */
  readonly api: Api;
  readonly clock: Clock;

  constructor(options: Options = {}) {
    const url = options.url ?? process.env["ESCROWMQ_URL"];
    if (!url) throw new TypeError("give url, or set ESCROWMQ_URL");
    this.clock = options.clock ?? systemClock;
    this.api = newApi({
      addresses: new Addresses(url),
      apiKey: options.apiKey ?? process.env["ESCROWMQ_API_KEY"],
      retry: { ...defaultRetry, ...options.retry },
      timeoutMs: options.timeoutMs ?? 10_000,
      clock: this.clock,
      fetch: options.fetch ?? ((request) => fetch(request)),
    });
  }

  /** Send a message. A key for repetitions is made unless one is given. */
  send(
    topic: string,
    message: MessageInput,
    { idempotencyKey, ...call }: CallOptions & { idempotencyKey?: string | undefined } = {},
  ): Promise<Schemas["Receipt"]> {
    const header = idempotencyKey === undefined ? {} : { "Idempotency-Key": idempotencyKey };
    const params = { path: { topic }, header };
    return this.api.POST("/v1/topics/{topic}/messages", { params, body: message, ...call });
  }

  /**
   * Send a message and wait for the reply of its consumer, for 30 seconds at most. With a longer
   * `timeoutMs`, the state may be `pending` then: get the request again for its reply.
   */
  request(
    topic: string,
    message: MessageInput,
    { timeoutMs = 30_000, ...call }: RequestOptions = {},
  ): Promise<Schemas["RequestView"]> {
    return this.api.POST("/v1/topics/{topic}/requests", {
      params: { path: { topic } },
      body: { message, timeout_ms: timeoutMs, wait_ms: Math.min(timeoutMs, 30_000) },
      ...call,
    });
  }

  /**
   * Publish messages if, and only if, a local transaction commits.
   *
   * `work` adds the messages, runs the local transaction, and calls `tx.mark` in it. When it
   * returns, the service commits. When it throws, the markers say what became of the local
   * transaction; where they cannot, nothing is sent and a check decides. Without `tx.mark`, begin
   * and commit are both sent when `work` returns, and nothing when it throws.
   */
  transaction<Db = never, Result = void>(
    producerGroup: string,
    options: TransactionOptions<MarkerStore<Db>>,
    work: (tx: MarkedTransaction<Db>) => Promise<Result>,
  ): Promise<Result>;
  transaction<Db, Result = void>(
    producerGroup: string,
    options: TransactionOptions<SyncMarkerStore<Db>>,
    work: (tx: SyncTransaction<Db>) => Promise<Result>,
  ): Promise<Result>;
  transaction<Db, Result>(
    producerGroup: string,
    options: TransactionOptions,
    work: (tx: Transaction<Db>) => Promise<Result>,
  ): Promise<Result> {
    return runTransaction(this, producerGroup, options, work);
  }

  /** Reply to a request; with `receipt_handle`, its message is acknowledged in the same step. */
  reply(
    requestId: string,
    body: Schemas["ReplyInput"],
    call: CallOptions = {},
  ): Promise<Schemas["ReplyResult"]> {
    const params = { path: { request_id: requestId } };
    return this.api.POST("/v1/requests/{request_id}/reply", { params, body, ...call });
  }

  /** Create a topic, unless it exists with these settings. With others: 409, `topic_exists`. */
  putTopic(
    topic: string,
    body: Schemas["TopicDefinition"] = {},
    call: CallOptions = {},
  ): Promise<Schemas["Topic"]> {
    return this.api.PUT("/v1/topics/{topic}", { params: { path: { topic } }, body, ...call });
  }

  /** Create a group that reads these topics, or change those of its settings that are given. */
  putGroup(
    group: string,
    body: Schemas["GroupInput"],
    call: CallOptions = {},
  ): Promise<Schemas["Group"]> {
    return this.api.PUT("/v1/groups/{group}", { params: { path: { group } }, body, ...call });
  }

  /** Begin a transaction with its messages, which no consumer sees before `commit`. */
  begin(
    body: Schemas["BeginInput"],
    { idempotencyKey, ...call }: CallOptions & { idempotencyKey?: string | undefined } = {},
  ): Promise<Schemas["Transaction"]> {
    const header = idempotencyKey === undefined ? {} : { "Idempotency-Key": idempotencyKey };
    return this.api.POST("/v1/transactions", { params: { header }, body, ...call });
  }

  /** Publish the messages of a transaction. Repeated, it changes nothing. */
  commit(transactionId: string, call: CallOptions = {}): Promise<Schemas["Decision"]> {
    const params = { path: { transaction_id: transactionId } };
    return this.api.POST("/v1/transactions/{transaction_id}/commit", { params, ...call });
  }

  /** Discard the messages of a transaction. Repeated, it changes nothing. */
  rollback(
    transactionId: string,
    { reason, ...call }: CallOptions & { reason?: string | undefined } = {},
  ): Promise<Schemas["Decision"]> {
    const params = { path: { transaction_id: transactionId } };
    const body = reason === undefined ? {} : { reason };
    return this.api.POST("/v1/transactions/{transaction_id}/rollback", { params, body, ...call });
  }

  /** Lease messages of a group. An id for repetitions is made unless `attempt_id` is given. */
  receive(
    group: string,
    body: Schemas["ReceiveInput"] = {},
    call: CallOptions = {},
  ): Promise<Schemas["ReceivedMessages"]> {
    return this.api.POST("/v1/groups/{group}/receive", {
      params: { path: { group } },
      body,
      ...call,
    });
  }

  /** Acknowledge messages. Throws `RefusedEntries` if a lease has ended. */
  ack(
    group: string,
    entries: Schemas["AckEntry"][],
    call: CallOptions = {},
  ): Promise<Schemas["SettleResults"]> {
    const params = { path: { group } };
    return this.api.POST("/v1/groups/{group}/ack", { params, body: { entries }, ...call });
  }

  /** Reject messages: each is delivered again, after `delay_ms` or the backoff of its group. */
  nack(
    group: string,
    entries: Schemas["NackEntry"][],
    call: CallOptions = {},
  ): Promise<Schemas["SettleResults"]> {
    const params = { path: { group } };
    return this.api.POST("/v1/groups/{group}/nack", { params, body: { entries }, ...call });
  }

  /** Extend the leases of messages, each from now on. */
  extend(
    group: string,
    entries: Schemas["ExtendEntry"][],
    call: CallOptions = {},
  ): Promise<Schemas["SettleResults"]> {
    const params = { path: { group } };
    return this.api.POST("/v1/groups/{group}/extend", { params, body: { entries }, ...call });
  }

  /** Move messages to the dead letters of their group. */
  deadLetter(
    group: string,
    entries: Schemas["DeadLetterEntry"][],
    call: CallOptions = {},
  ): Promise<Schemas["SettleResults"]> {
    const params = { path: { group } };
    return this.api.POST("/v1/groups/{group}/dead-letter", { params, body: { entries }, ...call });
  }
}
