import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import {
  type CheckAnswer,
  DeadLetter,
  EscrowMQ,
  json,
  LeaseLost,
  nodeCheckHandler,
  ProblemError,
  type ReceivedMessage,
  Redeliver,
  RefusedEntries,
  Worker,
} from "../../src/index.js";
import { client, newGroup, newTopic, stateOf, unique } from "./support.js";

test("a send whose answer is lost is stored once", async () => {
  const topic = await newTopic();
  let losses = 1;
  const lossy = new EscrowMQ({
    fetch: async (request) => {
      const response = await fetch(request);
      if (losses-- > 0) throw new TypeError("the answer was lost");
      return response;
    },
  });

  const receipt = await lossy.send(topic, { json: { id: 1 } });

  assert.equal(receipt.deduplicated, true);
  assert.equal(receipt.queue_offset, 0);
});

test("a request is replied to", async () => {
  const topic = await newTopic();
  const group = await newGroup(topic);
  const asked = client.request(topic, { json: { price: "?" } }, { timeoutMs: 10_000 });

  const { messages } = await client.receive(group, { wait_ms: 10_000 });
  const [message] = messages;
  const receipt_handle = message?.receipt_handle ?? "";
  await client.reply(message?.request_id ?? "", { json: { price: "4.20" }, receipt_handle });

  const { state, reply } = await asked;
  assert.equal(state, "replied");
  assert.equal(await lagOf(group), 0);
  assert.deepEqual(reply && json(reply), { price: "4.20" });
});

test("raw bodies and bytes are sent and read by the typed operations", async () => {
  const topic = await newTopic();
  const sent = new Uint8Array([0, 255]);

  const { message_id } = await client.api.POST("/v1/topics/{topic}/messages/raw", {
    params: { path: { topic } },
    headers: { "content-type": "application/octet-stream" },
    body: sent as unknown as string,
    bodySerializer: (body) => body,
  });
  const read = await client.api.GET("/v1/messages/{message_id}/payload", {
    params: { path: { message_id } },
    parseAs: "arrayBuffer",
  });

  assert.deepEqual(new Uint8Array(read), sent);
});

test("a problem is thrown with its code, and no content is no data", async () => {
  const topic = await newTopic();
  const params = { path: { topic } };

  await client.api.DELETE("/v1/topics/{topic}", { params });

  await assert.rejects(client.api.GET("/v1/topics/{topic}", { params }), (error: unknown) => {
    assert.ok(error instanceof ProblemError);
    assert.deepEqual([error.status, error.code], [404, "topic_not_found"]);
    return true;
  });
});

test("a refused entry is thrown with the whole answer", async () => {
  const topic = await newTopic();
  const group = await newGroup(topic);

  await assert.rejects(client.ack(group, [{ receipt_handle: "lh_none" }]), (error: unknown) => {
    assert.ok(error instanceof RefusedEntries);
    assert.deepEqual(
      error.problems.map(({ code, index, id }) => [code, index, id]),
      [["lease_expired", 0, "lh_none"]],
    );
    return true;
  });
});

async function lagOf(group: string): Promise<number> {
  const lag = await client.api.GET("/v1/groups/{group}/lag", { params: { path: { group } } });
  return lag.messages_ready + lag.messages_leased + lag.messages_waiting;
}

test("a worker processes each message, and what it rejects comes again", async () => {
  const topic = await newTopic();
  const group = await newGroup(topic);
  const entries = Array.from({ length: 100 }, (_, n) => ({ message: { json: n } }));
  const params = { path: { topic } };
  await client.api.POST("/v1/topics/{topic}/messages/batch", { params, body: { entries } });
  const stop = new AbortController();
  const done = new Set<number>();
  let dead = 0;
  const worker = new Worker(
    client,
    group,
    async (message) => {
      const n = json<number>(message);
      if (n % 10 === 0 && message.attempt === 1) throw new Redeliver(0);
      if (n === 55) {
        dead++;
        throw new DeadLetter("it is 55");
      }
      done.add(n);
      if (done.size === 99) stop.abort();
    },
    { concurrency: 8, waitMs: 1_000 },
  );

  await worker.run({ signal: stop.signal });

  assert.deepEqual([done.size, dead], [99, 1]);
  assert.equal(await lagOf(group), 0);
  const { acknowledged, rejected, deadLettered, lost } = worker.counts;
  assert.deepEqual([acknowledged, rejected, deadLettered, lost], [99, 10, 1, 0]);
  const dead_ = await client.api.GET("/v1/groups/{group}/dead-letters", {
    params: { path: { group } },
  });
  assert.deepEqual(
    dead_.items.map(({ reason }) => reason),
    ["it is 55"],
  );
});

test("errors with any text reject their messages, each with a reason", async () => {
  const topic = await newTopic();
  const group = await newGroup(topic);
  const said = ["\u001b[31m\r\n\u0085", "\ud83d", "\u{1f980}".repeat(600), ""];
  const entries = said.map((_, n) => ({ message: { json: n } }));
  const params = { path: { topic } };
  await client.api.POST("/v1/topics/{topic}/messages/batch", { params, body: { entries } });
  const stop = new AbortController();
  let done = 0;
  const errors: unknown[] = [];
  const worker = new Worker(
    client,
    group,
    async (message) => {
      if (message.attempt === 1) throw new Redeliver(0, said[json<number>(message)]);
      if (++done === said.length) stop.abort();
    },
    { waitMs: 1_000, onError: (error) => errors.push(error) },
  );

  await worker.run({ signal: stop.signal });

  assert.deepEqual(errors, []);
  assert.equal(worker.counts.rejected, said.length);
});

test("the handler of a lease that ended is aborted, as the next extension is refused", async () => {
  const topic = await newTopic();
  const group = await newGroup(topic);
  await client.send(topic, { json: 1 });
  const stop = new AbortController();
  const errors: unknown[] = [];
  const attempts: number[] = [];
  const handler = async (message: ReceivedMessage, { signal }: { signal: AbortSignal }) => {
    attempts.push(message.attempt);
    if (attempts.length === 2) return stop.abort();
    const body = { topic, to: "earliest" } as const; // ends the lease
    const params = { path: { group } };
    await client.api.POST("/v1/groups/{group}/offsets/reset", { params, body });
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    throw signal.reason;
  };
  const onError = (error: unknown): unknown => errors.push(error);
  const worker = new Worker(client, group, handler, { leaseMs: 300, waitMs: 1_000, onError });

  await worker.run({ signal: stop.signal });

  assert.equal(attempts.length, 2);
  assert.ok(errors[0] instanceof LeaseLost);
  assert.equal(await lagOf(group), 0);
});

test("an ordered group gets the messages of a key in order, whatever is rejected", async () => {
  const topic = await newTopic();
  const group = await newGroup(topic, { ordered: true });
  for (let n = 0; n < 6; n++) await client.send(topic, { json: n, ordering_key: "a" });
  const stop = new AbortController();
  const done: number[] = [];
  const handler = async (message: ReceivedMessage) => {
    const n = json<number>(message);
    if (n === 2 && message.attempt === 1) throw new Redeliver(0);
    done.push(n);
    if (n === 5) stop.abort();
  };

  await new Worker(client, group, handler, { waitMs: 1_000 }).run({ signal: stop.signal });

  assert.deepEqual(done, [0, 1, 2, 3, 4, 5]);
});

test("messages that no handler has begun at a stop keep their last attempt", async () => {
  const topic = await newTopic();
  const group = await newGroup(topic, { ordered: true, max_attempts: 1, lease_ms: 600_000 });
  const entries = [0, 1, 2].map((json) => ({ message: { json, ordering_key: "a" } }));
  const params = { path: { topic } };
  await client.api.POST("/v1/topics/{topic}/messages/batch", { params, body: { entries } });
  const stop = new AbortController();
  const begun: number[] = [];
  const handler = async (message: ReceivedMessage, { signal }: { signal: AbortSignal }) => {
    begun.push(json<number>(message));
    stop.abort();
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
  };

  await new Worker(client, group, handler, { shutdownMs: 0 }).run({ signal: stop.signal });

  const dead = await client.api.GET("/v1/groups/{group}/dead-letters", {
    params: { path: { group } },
  });
  assert.deepEqual(
    dead.items.map(({ message }) => json<number>(message)),
    begun,
  );
  const { messages } = await client.receive(group, { wait_ms: 5_000 });
  assert.deepEqual([begun, messages.map((message) => json<number>(message))], [[0], [1, 2]]);
  assert.deepEqual(
    messages.map(({ attempt }) => attempt),
    [1, 1],
  );
});

test("a webhook is answered, and the service finds the endpoint safe", async () => {
  const group = unique("shop");
  const secrets: string[] = [];
  const outcomes = new Map<string, CheckAnswer["decision"]>();
  const handler = nodeCheckHandler(
    () => secrets,
    (id) => outcomes.get(id) ?? "rollback",
  );
  const server = createServer((request, response) => void handler(request, response));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const check_url = `http://localhost:${(server.address() as AddressInfo).port}/check`;
  const params = { path: { producer_group: group } };
  const made = await client.api.PUT("/v1/producer-groups/{producer_group}", {
    params,
    body: { check_mode: "webhook", check_url },
  });
  secrets.push(made.signing_secret ?? "");

  const tested = await client.api.POST("/v1/producer-groups/{producer_group}/check-test", {
    params,
  });
  const [id, topic] = [unique("order"), await newTopic()];
  outcomes.set(id, "commit");
  await client.begin({
    transaction_id: id,
    producer_group: group,
    messages: [{ topic, message: { json: 1 } }],
    check: { first_after_ms: 10 },
  });
  const state = await stateOf(id, 10_000);
  server.close();
  server.closeAllConnections();

  assert.deepEqual(
    tested.cases.filter(({ passed }) => !passed),
    [],
  );
  assert.equal(tested.cases.length, 5);
  assert.equal(state, "committed");
});
