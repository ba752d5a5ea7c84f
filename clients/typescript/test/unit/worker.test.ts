import assert from "node:assert/strict";
import { test } from "node:test";
import { format } from "node:util";
import {
  DeadLetter,
  type Handler,
  LeaseLost,
  type ReceivedMessage,
  Redeliver,
  Unreachable,
  Worker,
  type WorkerOptions,
} from "../../src/index.js";
import { type Call, fakeService, problem, refused, respond, settled, silence } from "./support.js";

const GROUP = "GET /v1/groups/billing";
const RECEIVE = "POST /v1/groups/billing/receive";
const ACK = "POST /v1/groups/billing/ack";
const NACK = "POST /v1/groups/billing/nack";
const EXTEND = "POST /v1/groups/billing/extend";
const DEAD = "POST /v1/groups/billing/dead-letter";

const T0 = Date.parse("2026-01-01T00:00:00Z");

function message(n: number, fields: Partial<ReceivedMessage> = {}): ReceivedMessage {
  return {
    message_id: `msg_${n}`,
    topic: "orders",
    queue_id: 0,
    queue_offset: n,
    payload: `${n}`,
    properties: {},
    born_at: "",
    stored_at: "",
    attempt: 1,
    receipt_handle: `lh_${n}`,
    lease_expires_at: new Date(T0 + 30_000).toISOString(),
    ...fields,
  };
}

/** A service with these messages, and a worker that runs; `answer` may answer instead. */
function world(
  messages: ReceivedMessage[],
  handler: Handler,
  options: WorkerOptions & { ordered?: boolean; dead_letter?: boolean } = {},
  answer: (call: Call) => unknown = () => undefined,
) {
  const { ordered = false, dead_letter = true, ...rest } = options;
  const errors: unknown[] = [];
  const service = fakeService(
    (call) => {
      const own = answer(call);
      if (own !== undefined) return own;
      if (call.operation === GROUP) return { ordered, max_attempts: 4, dead_letter };
      if (call.operation === RECEIVE) {
        const some = messages.splice(0, call.body.max_messages);
        if (some.length === 0 && call.body.wait_ms > 0) return silence;
        return { server_time: new Date(T0).toISOString(), messages: some };
      }
      const results = call.body.entries.map(() => ({ status: 200 }));
      return { accepted: results.length, rejected: 0, results };
    },
    { timeoutMs: 30_000 },
  );
  const onError = (error: unknown): unknown => errors.push(error);
  const quiet = { onError, onRecovery: () => undefined };
  const worker = new Worker(service.client, "billing", handler, { ...quiet, ...rest });
  const stop = new AbortController();
  const running = worker.run({ signal: stop.signal });
  const handles = (operation: string): string[] =>
    service.calls
      .filter((call) => call.operation === operation)
      .flatMap(({ body }) => body.entries.map((entry: any) => entry.receipt_handle));
  return { ...service, worker, errors, handles, running, stop: () => stop.abort() };
}

/** A handler whose calls the test ends. */
function held() {
  const open = new Map<string, { end: (error?: unknown) => void; signal: AbortSignal }>();
  const handler: Handler = ({ message_id }, { signal }) =>
    new Promise((resolve, reject) => {
      open.set(message_id, { end: (error) => (error ? reject(error) : resolve(0)), signal });
    });
  return { open, handler };
}

test("messages that end together are acknowledged in one request", async () => {
  const seen: string[] = [];
  const { worker, calls, handles, running, stop } = world(
    [message(1), message(2), message(3)],
    async ({ message_id }) => seen.push(message_id),
  );
  await settled();
  stop();
  await running;

  assert.deepEqual(seen, ["msg_1", "msg_2", "msg_3"]);
  assert.deepEqual(handles(ACK), ["lh_1", "lh_2", "lh_3"]);
  assert.equal(calls.filter(({ operation }) => operation === ACK).length, 1);
  assert.equal(worker.counts.acknowledged, 3);
});

test("no more messages are received than can start now", async () => {
  const { open, handler } = held();
  const { calls, running, stop } = world(
    [1, 2, 3, 4].map((n) => message(n)),
    handler,
    {
      concurrency: 2,
    },
  );
  const wanted = (): number[] =>
    calls.filter(({ operation }) => operation === RECEIVE).map(({ body }) => body.max_messages);
  await settled();
  assert.deepEqual([...open.keys()], ["msg_1", "msg_2"]);
  assert.deepEqual(wanted(), [2]);

  open.get("msg_1")?.end();
  await settled();

  assert.deepEqual([...open.keys()], ["msg_1", "msg_2", "msg_3"]);
  assert.deepEqual(wanted(), [2, 1]);
  open.forEach(({ end }) => end());
  stop();
  await settled();
  open.forEach(({ end }) => end());
  await running;
});

test("a lease is extended at a third of it, until the message is acknowledged", async () => {
  const { open, handler } = held();
  const { clock, handles, running, stop } = world([message(1)], handler);
  await clock.advance(9_999);
  assert.deepEqual(handles(EXTEND), []);
  await clock.advance(1);
  assert.deepEqual(handles(EXTEND), ["lh_1"]);
  await clock.advance(20_000);
  assert.equal(handles(EXTEND).length, 3);

  open.get("msg_1")?.end();
  await clock.advance(60_000);

  assert.equal(handles(EXTEND).length, 3);
  stop();
  await running;
});

test("a lost lease aborts the handler, whose result is not sent", async () => {
  const { open, handler } = held();
  const results = [{ status: 409, problem: problem(409, "lease_expired") }];
  const { clock, handles, errors, worker, running, stop } = world(
    [message(1)],
    handler,
    {},
    ({ operation }) =>
      operation === EXTEND ? respond(207, { accepted: 0, rejected: 1, results }) : undefined,
  );
  await clock.advance(10_000);
  const { signal, end } = open.get("msg_1") ?? assert.fail();

  assert.equal(signal.aborted, true);
  assert.ok(signal.reason instanceof LeaseLost);
  end();
  await settled();
  assert.deepEqual(handles(ACK), []);
  assert.ok(errors[0] instanceof LeaseLost);
  assert.equal(worker.counts.lost, 1);
  stop();
  await running;
});

test("a lease that cannot be extended is lost when it ends, not before", async () => {
  const { open, handler } = held();
  const { clock, running, stop } = world([message(1)], handler, {}, ({ operation }) =>
    operation === EXTEND ? new TypeError("away") : undefined,
  );
  await clock.advance(29_999);
  const { signal, end } = open.get("msg_1") ?? assert.fail();
  assert.equal(signal.aborted, false);

  await clock.advance(1);

  assert.equal(signal.aborted, true);
  end();
  stop();
  await running;
});

test("a lease is not extended beyond its longest time", async () => {
  const { open, handler } = held();
  const options = { maxLeaseMs: 15_000 };
  const { clock, handles, running, stop } = world([message(1)], handler, options);

  await clock.advance(120_000);

  assert.equal(handles(EXTEND).length, 1);
  const { signal, end } = open.get("msg_1") ?? assert.fail();
  assert.equal(signal.aborted, true);
  end();
  stop();
  await running;
});

test("an error of the handler rejects the message with its reason, and is reported", async () => {
  const { calls, errors, running, stop } = world([message(1)], async () => {
    throw new Error("database away");
  });
  await settled();
  stop();
  await running;

  const [nack] = calls.filter(({ operation }) => operation === NACK);
  assert.deepEqual(nack?.body.entries, [
    { receipt_handle: "lh_1", reason: "Error: database away" },
  ]);
  assert.match(String(errors[0]), /database away/);
});

for (const [name, said, reason] of [
  ["control characters", "\u001b[31mfailed\r\n\u0085 at line 1\u0000", "[31mfailed  at line 1"],
  ["half of a character", "\ud83d is half", "\ufffd is half"],
  ["no text", "\n", "no reason"],
  ["too long a text", "\u{1f980}".repeat(501), "\u{1f980}".repeat(500)],
  [
    "a text that is cut in a character",
    `${"x".repeat(254)}\u{1f980}`,
    `${"x".repeat(254)}\u{1f980}`,
  ],
] as const) {
  test(`an error with ${name} becomes a reason that the service takes`, async () => {
    const { calls, running, stop } = world([message(1)], async () => {
      throw new Redeliver(undefined, said);
    });
    await settled();
    stop();
    await running;

    const [nack] = calls.filter(({ operation }) => operation === NACK);
    assert.equal(nack?.body.entries[0].reason, reason);
  });
}

for (const [name, thrown] of [
  ["without a text", Object.create(null)],
  ["with a message that is no text", Object.assign(new Error(), { message: { a: 1 } })],
] as const) {
  test(`a value ${name} that a handler throws rejects the message`, async () => {
    const { worker, errors, running, stop } = world([message(1)], async () => {
      throw thrown;
    });
    await settled();
    stop();
    await running;

    assert.equal(worker.counts.rejected, 1);
    assert.deepEqual(errors, [thrown]);
  });
}

test("an entry for which its batch is refused does not keep back the others", async () => {
  const { worker, errors, handles, running, stop } = world(
    [1, 2, 3, 4, 5].map((n) => message(n)),
    async ({ message_id }) => {
      throw new Redeliver(message_id === "msg_2" ? -1 : 5_000);
    },
    {},
    ({ operation, body }) =>
      operation === NACK && body.entries.some((entry: any) => entry.delay_ms < 0)
        ? refused(422, "validation_failed")
        : undefined,
  );
  await settled();
  stop();
  await running;

  assert.equal(worker.counts.rejected, 4);
  assert.equal(errors.length, 1);
  assert.ok(handles(NACK).length <= 5 * 4);
});

test("a handler may ask for another delivery, or for the dead letters", async () => {
  const { calls, errors, worker, running, stop } = world(
    [message(1), message(2)],
    async ({ message_id }) => {
      throw message_id === "msg_1" ? new Redeliver(5_000, "later") : new DeadLetter("bad schema");
    },
  );
  await settled();
  stop();
  await running;

  const sent = (one: string) => calls.find(({ operation }) => operation === one)?.body.entries;
  assert.deepEqual(sent(NACK), [{ receipt_handle: "lh_1", reason: "later", delay_ms: 5_000 }]);
  assert.deepEqual(sent(DEAD), [{ receipt_handle: "lh_2", reason: "bad schema" }]);
  assert.deepEqual(errors, []);
  assert.deepEqual([worker.counts.rejected, worker.counts.deadLettered], [1, 1]);
});

test("an acknowledgement that is refused is reported and counted", async () => {
  const results = [{ status: 409, problem: problem(409, "lease_expired") }];
  const { errors, worker, running, stop } = world(
    [message(1)],
    async () => undefined,
    {},
    ({ operation }) =>
      operation === ACK ? respond(207, { accepted: 0, rejected: 1, results }) : undefined,
  );
  await settled();
  stop();
  await running;

  assert.ok(errors[0] instanceof LeaseLost);
  assert.deepEqual([worker.counts.acknowledged, worker.counts.lost], [0, 1]);
});

test("an extension that comes after the acknowledgement is no lost lease", async () => {
  const { open, handler } = held();
  let isAcked: (answer: unknown) => void = () => undefined;
  const { clock, worker, errors, running, stop } = world([message(1)], handler, {}, (call) => {
    if (call.operation === ACK) return new Promise((resolve) => (isAcked = resolve));
    const results = [{ status: 409, problem: problem(409, "lease_expired") }];
    return call.operation === EXTEND
      ? respond(207, { accepted: 0, rejected: 1, results })
      : undefined;
  });
  await settled();
  open.get("msg_1")?.end();
  await clock.advance(10_000);
  isAcked({ accepted: 1, rejected: 0, results: [{ status: 200 }] });
  await settled();

  assert.deepEqual(errors, []);
  assert.deepEqual([worker.counts.acknowledged, worker.counts.lost], [1, 0]);
  stop();
  await running;
});

test("a lease that ends while its acknowledgement is on the way is lost once", async () => {
  const { open, handler } = held();
  const results = [{ status: 409, problem: problem(409, "lease_expired") }];
  const { clock, worker, errors, running, stop } = world([message(1)], handler, {}, (call) => {
    if (call.operation === EXTEND) return new TypeError("away");
    if (call.operation !== ACK) return undefined;
    return clock.sleep(10_000).then(() => respond(207, { accepted: 0, rejected: 1, results }));
  });
  await clock.advance(25_000);
  open.get("msg_1")?.end();
  await clock.advance(60_000);

  assert.equal(worker.counts.lost, 1);
  assert.equal(errors.filter((error) => error instanceof LeaseLost).length, 1);
  stop();
  await running;
});

test("an acknowledgement that is accepted after its lease has ended loses nothing", async () => {
  const { open, handler } = held();
  const { clock, worker, errors, running, stop } = world([message(1)], handler, {}, (call) => {
    if (call.operation === EXTEND) return new TypeError("away");
    if (call.operation !== ACK) return undefined;
    const results = [{ status: 200 }];
    return clock.sleep(10_000).then(() => ({ accepted: 1, rejected: 0, results }));
  });
  await clock.advance(25_000);
  open.get("msg_1")?.end();
  await clock.advance(60_000);

  assert.deepEqual([worker.counts.acknowledged, worker.counts.lost], [1, 0]);
  assert.deepEqual(
    errors.filter((error) => error instanceof LeaseLost),
    [],
  );
  stop();
  await running;
});

test("a stop waits for handlers, whose leases are extended meanwhile", async () => {
  const { open, handler } = held();
  const { clock, handles, running, stop } = world([message(1)], handler);
  await settled();
  stop();
  await clock.advance(15_000);
  assert.deepEqual(handles(EXTEND), ["lh_1"]);

  open.get("msg_1")?.end();
  await running;

  assert.deepEqual(handles(ACK), ["lh_1"]);
  assert.deepEqual(handles(NACK), []);
});

test("a handler that outlasts a stop is aborted, and its message given back", async () => {
  const { open, handler } = held();
  const { clock, calls, running, stop } = world([message(1)], handler);
  await settled();
  stop();
  await clock.advance(25_000);
  await running;

  assert.equal(open.get("msg_1")?.signal.aborted, true);
  const [nack] = calls.filter(({ operation }) => operation === NACK);
  const reason = "the worker stopped";
  assert.deepEqual(nack?.body.entries, [{ receipt_handle: "lh_1", delay_ms: 0, reason }]);
});

test("a stop while the service is away ends soon after the time of its handlers", async () => {
  const { open, handler } = held();
  const { clock, errors, running, stop } = world(
    [message(1), message(2)],
    handler,
    { shutdownMs: 2_000 },
    ({ operation }) => ([ACK, NACK].includes(operation) ? new TypeError("away") : undefined),
  );
  let endedAt: number | undefined;
  const ended = running.then(() => (endedAt = clock.now()));
  await settled();
  stop();
  open.get("msg_1")?.end();

  await clock.advance(4_000);
  await clock.advance(60_000);
  await ended;

  assert.equal(endedAt, 4_000);
  const left = errors.filter((error) => /^Stopped: .* no answer in 2000 ms/.test(`${error}`));
  assert.equal(left.length, 2, errors.join("\n"));
});

test("a second stop does not wait", async () => {
  const { open, handler } = held();
  const { worker, handles, running, stop } = world([message(1)], handler);
  await settled();
  stop();
  worker.stop({ now: true });
  await running;

  assert.equal(open.get("msg_1")?.signal.aborted, true);
  assert.deepEqual(handles(NACK), ["lh_1"]);
});

test("in an ordered group one message of a key is processed at a time", async () => {
  const { open, handler } = held();
  const { running, handles, stop } = world(
    [
      message(1, { ordering_key: "a" }),
      message(2, { ordering_key: "a" }),
      message(3, { ordering_key: "b" }),
    ],
    handler,
    { ordered: true },
  );
  await settled();
  assert.deepEqual([...open.keys()], ["msg_1", "msg_3"]);

  open.get("msg_1")?.end();
  await settled();

  assert.deepEqual([...open.keys()], ["msg_1", "msg_3", "msg_2"]);
  open.forEach(({ end }) => end());
  stop();
  await running;
  assert.deepEqual(handles(ACK).sort(), ["lh_1", "lh_2", "lh_3"]);
});

test("at a stop only messages whose handler has begun use an attempt", async () => {
  const { open, handler } = held();
  const { calls, worker, running, stop } = world(
    [message(1, { ordering_key: "a" }), message(2, { ordering_key: "a" })],
    handler,
    { ordered: true },
  );
  await settled();
  stop();
  worker.stop({ now: true });
  await running;

  assert.deepEqual([...open.keys()], ["msg_1"]);
  const [nack] = calls.filter(({ operation }) => operation === NACK);
  const how = { delay_ms: 0, reason: "the worker stopped" };
  assert.deepEqual(nack?.body.entries, [
    { receipt_handle: "lh_1", ...how },
    { receipt_handle: "lh_2", ...how, unprocessed: true },
  ]);
});

test("in an ordered group the messages behind a rejected one are given back", async () => {
  const seen: string[] = [];
  const { calls, running, handles, stop } = world(
    [message(1, { ordering_key: "a" }), message(2, { ordering_key: "a" })],
    async ({ message_id }) => {
      seen.push(message_id);
      throw new Redeliver();
    },
    { ordered: true },
  );
  await settled();
  stop();
  await running;

  assert.deepEqual(seen, ["msg_1"]);
  assert.deepEqual(handles(NACK), ["lh_1", "lh_2"]);
  const entries = calls.flatMap(({ operation, body }) => (operation === NACK ? body.entries : []));
  assert.deepEqual(
    entries.map(({ unprocessed }) => unprocessed),
    [undefined, true],
  );
});

test("a worker goes on after a service that was away, and was not healthy", async () => {
  const { clock, worker, errors, handles, running, stop } = world(
    [message(1)],
    async () => undefined,
    {},
    ({ operation }) =>
      operation === RECEIVE && clock.now() < 70_000 ? new TypeError("away") : undefined,
  );
  await clock.advance(65_000);
  assert.equal(worker.healthy(), false);
  await clock.advance(20_000);

  assert.equal(worker.healthy(), true);
  assert.ok(errors.length >= 1);
  assert.deepEqual(handles(ACK), ["lh_1"]);
  stop();
  await running;
});

test("an outage is reported at its first failed try, each 30 s, and when it ends", async () => {
  const times: number[] = [];
  const ends: number[] = [];
  const messages: ReceivedMessage[] = [];
  const options: WorkerOptions = {
    onError: () => times.push(clock.now()),
    onRecovery: (awayMs) => ends.push(clock.now(), awayMs),
  };
  const isAway = (): boolean => clock.now() >= 25_000 && clock.now() < 125_000;
  const { clock, running, calls, stop } = world(
    messages,
    async () => undefined,
    options,
    ({ operation, body }) => {
      if (isAway()) return new TypeError("away");
      if (operation !== RECEIVE) return undefined;
      return clock.sleep(body.wait_ms).then(() => ({ server_time: "", messages: [] }));
    },
  );

  await clock.advance(200_000);
  stop();
  await running;

  assert.equal(times.length, 3);
  const [first = 0, second = 0, third = 0] = times;
  assert.equal(first, 40_000); // the end of a receive that the service had taken
  assert.ok(second >= 70_000 && second < 75_000, `${second}`);
  assert.ok(third >= 100_000 && third < 110_000, `${third}`);
  assert.equal(ends.length, 2);
  const [end = 0, awayMs] = ends;
  assert.ok(end >= 125_000 && end <= 127_500, `${end}`);
  assert.equal(awayMs, end - first);
  const receives = calls.filter(({ operation }) => operation === RECEIVE);
  assert.ok(receives.length < 60, `${receives.length}`);
});

test("an outage is reported once, however many acknowledgements wait for its end", async () => {
  const { open, handler } = held();
  const ends: number[] = [];
  const { clock, errors, worker, running, stop } = world(
    [1, 2, 3].map((n) => message(n)),
    handler,
    { concurrency: 3, onRecovery: (awayMs) => ends.push(awayMs) },
    () => (clock.now() >= 5_000 && clock.now() < 20_000 ? new TypeError("away") : undefined),
  );
  await clock.advance(5_000);
  open.get("msg_1")?.end();
  await clock.advance(0);
  assert.equal(errors.length, 1);
  assert.ok(errors[0] instanceof Unreachable);

  await clock.advance(20_000);

  assert.equal(errors.length, 1);
  assert.equal(ends.length, 1);
  assert.equal(worker.counts.acknowledged, 1);
  open.forEach(({ end }) => end());
  stop();
  await running;
});

test("a receive whose answer was lost is repeated with its id until it is answered", async () => {
  const { calls, clock, handles, running, stop } = world(
    [message(1)],
    async () => undefined,
    {},
    ({ operation }) =>
      operation === RECEIVE && clock.now() < 90_000 ? new TypeError("lost") : undefined,
  );
  await clock.advance(100_000);
  stop();
  await running;

  const ids = calls.filter(({ operation }) => operation === RECEIVE).map((call) => call.body);
  assert.equal(new Set(ids.map(({ attempt_id }) => attempt_id)).size, 2);
  assert.deepEqual(handles(ACK), ["lh_1"]);
});

test("a worker that starts while the service is away waits for it", async () => {
  const { clock, errors, handles, running, stop } = world(
    [message(1)],
    async () => undefined,
    {},
    () => (clock.now() < 90_000 ? new TypeError("away") : undefined),
  );
  await clock.advance(0);
  assert.ok(errors[0] instanceof Unreachable);

  await clock.advance(100_000);
  stop();
  await running;

  assert.deepEqual(handles(ACK), ["lh_1"]);
});

test("an onError that throws, or returns a promise that rejects, breaks nothing", async (t) => {
  const log = t.mock.method(console, "error", () => undefined);
  for (const onError of [
    (): void => {
      throw new Error("the log is full");
    },
    async (): Promise<void> => {
      throw new Error("the log is full");
    },
  ]) {
    const { clock, worker, running, stop } = world(
      [message(1), message(2)],
      async ({ message_id }) => {
        if (message_id === "msg_1") throw new Error("no");
      },
      { onError },
    );
    await clock.advance(10);
    stop();
    await running;

    assert.deepEqual([worker.counts.acknowledged, worker.counts.rejected], [1, 1]);
  }
  assert.equal(log.mock.callCount(), 2);
});

test("without onError, the console has the message of an error, and what is next", async (t) => {
  const lines: string[] = [];
  t.mock.method(console, "error", (...parts: unknown[]) => lines.push(parts.join("")));
  const info = t.mock.method(console, "info", () => undefined);
  const lost = problem(409, "lease_expired");
  const { client, clock } = fakeService(({ operation, body }) => {
    const isAway = clock.now() === 0;
    if (operation === GROUP) return isAway ? new TypeError("away") : { max_attempts: 4 };
    if (operation === ACK) {
      return respond(207, { accepted: 0, rejected: 1, results: [{ status: 409, problem: lost }] });
    }
    if (operation === NACK) return { accepted: 1, rejected: 0, results: [{ status: 200 }] };
    if (body.wait_ms > 0) return silence;
    const messages = [message(1, { key: "order-1" }), message(2, { attempt: 3 })];
    return { server_time: new Date(T0).toISOString(), messages };
  });
  const stop = new AbortController();
  const worker = new Worker(client, "billing", async ({ message_id }) => {
    if (message_id === "msg_1") throw new Error("no paper");
  });
  const running = worker.run({ signal: stop.signal });
  await clock.advance(1_000);
  stop.abort();
  await running;

  assert.match(
    String(info.mock.calls[0]?.arguments[0]),
    /^group billing: EscrowMQ answers again, after \d+ ms$/,
  );
  assert.equal(lines.length, 3);
  assert.match(lines[0] ?? "", /^group billing: Unreachable: no response .* it is tried again$/);
  const about = (id: string): string => lines.find((line) => line.includes(id)) ?? "";
  const [first, stack] = about("msg_1").split("\n");
  assert.equal(
    first,
    "group billing: message msg_1 of topic orders (key order-1, attempt 1 of 4): " +
      "the handler failed; it is delivered again",
  );
  assert.match(stack ?? "", /^Error: no paper/);
  assert.match(
    about("msg_2"),
    /^group billing: message msg_2 .* \(attempt 3 of 4\): LeaseLost: .*; it is delivered again$/,
  );
});

for (const [dead_letter, end] of [
  [true, "becomes a dead letter"],
  [false, "is dropped"],
] as const) {
  test(`without onError, the console has one line of a message that ${end}`, async (t) => {
    const log = t.mock.method(console, "error", () => undefined);
    const thrown = [new Error("no paper"), new Redeliver(5_000, "later"), new DeadLetter("bad")];
    const { running, stop } = world(
      [message(1, { attempt: 4 }), message(2, { attempt: 4 }), message(3)],
      async ({ queue_offset }) => {
        throw thrown[queue_offset - 1];
      },
      { dead_letter, onError: undefined },
    );
    await settled();
    stop();
    await running;

    const lines = log.mock.calls.map(({ arguments: [line] }) => String(line).trimEnd());
    const last = `it was the last attempt, so it ${end}`;
    assert.deepEqual(lines, [
      `group billing: message msg_1 of topic orders (attempt 4 of 4): the handler failed; ${last}`,
      `group billing: message msg_2 of topic orders (attempt 4 of 4): Redeliver: later; ${last}`,
      `group billing: message msg_3 of topic orders (attempt 1 of 4): DeadLetter: bad; it ${end}`,
    ]);
  });
}

test("an error that the console cannot write rejects its message like any other", async (t) => {
  const log = t.mock.method(console, "error", (...parts: unknown[]) => void format(...parts));
  const { handles, worker, running, stop } = world(
    [message(1), message(2)],
    async ({ message_id }) => {
      if (message_id === "msg_1") throw Object.assign(new Error("odd"), { name: Symbol("odd") });
    },
    { onError: undefined },
  );
  await settled();
  stop();
  await running;

  assert.deepEqual([handles(NACK), handles(ACK)], [["lh_1"], ["lh_2"]]);
  assert.equal(worker.counts.rejected, 1);
  assert.match(String(log.mock.calls[1]?.arguments[0]), /TypeError/);
});

test("onError takes a Redeliver on the last attempt, and no DeadLetter", async () => {
  const later = new Redeliver(5_000, "later");
  const { errors, running, stop } = world(
    [message(1, { attempt: 4 }), message(2, { attempt: 4 })],
    async ({ message_id }) => {
      throw message_id === "msg_1" ? later : new DeadLetter("bad");
    },
  );
  await settled();
  stop();
  await running;

  assert.deepEqual(errors, [later]);
});

test("a worker that has ended is not healthy", async () => {
  const { worker, running, stop } = world([], async () => undefined);
  await settled();
  assert.equal(worker.healthy(), true);
  stop();
  await running;

  assert.equal(worker.healthy(), false);
});

test("a worker that runs until it is idle returns the number of messages", async () => {
  const messages = [1, 2, 3].map((n) => message(n));
  const { client, operations } = fakeService(({ operation, body }) => {
    if (operation === GROUP) return { ordered: false };
    if (operation === RECEIVE) {
      assert.equal(body.wait_ms, 0);
      const some = messages.splice(0, body.max_messages);
      return { server_time: new Date(T0).toISOString(), messages: some };
    }
    return { accepted: 1, rejected: 0, results: body.entries.map(() => ({ status: 200 })) };
  });
  const seen: string[] = [];
  const handler: Handler = async ({ message_id }) => seen.push(message_id);
  const worker = new Worker(client, "billing", handler, { concurrency: 2 });

  assert.equal(await worker.runUntilIdle(), 3);
  assert.deepEqual(seen, ["msg_1", "msg_2", "msg_3"]);
  assert.deepEqual(operations().filter((one) => one === ACK).length, 2);
  assert.equal(await worker.runUntilIdle(), 0);
  messages.push(message(4));
  assert.equal(await worker.runUntilIdle(), 1);
});

test("a worker runs once, and with one handler at least", async () => {
  const { worker, running, stop } = world([], async () => undefined);
  await assert.rejects(worker.run(), /was called before/);
  stop();
  await running;

  for (const concurrency of [0, -1, 1.5, NaN]) {
    const options = { concurrency };
    assert.throws(() => new Worker(worker.client, "billing", worker.handler, options), RangeError);
  }
});

test("a worker whose requests are not repeated pauses between them", async () => {
  const { client, clock, operations } = fakeService(
    ({ operation }) => (operation === GROUP ? { ordered: false } : new TypeError("away")),
    { retry: { totalMs: 0 } },
  );
  const stop = new AbortController();
  const worker = new Worker(client, "billing", async () => undefined, { onError: () => undefined });
  const running = worker.run({ signal: stop.signal });

  await clock.advance(5_500);
  stop.abort();
  await running;

  assert.equal(operations().filter((one) => one === RECEIVE).length, 7);
});

test("a group that does not exist ends the worker with the refusal", async () => {
  const { running } = world(
    [],
    async () => undefined,
    {},
    () => refused(404, "group_not_found"),
  );

  await assert.rejects(running, { code: "group_not_found" });
});
