import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { KEYED, REMOVING, SENT_ONCE } from "../../src/generated/operations.js";
import * as exported from "../../src/index.js";
import {
  type Api,
  EscrowMQ,
  EscrowMQError,
  ProblemError,
  RefusedEntries,
  type Schemas,
  systemClock,
  Unreachable,
} from "../../src/index.js";
import { fakeService, type ManualClock, problem, refused, respond, silence } from "./support.js";

const RECEIPT = { message_id: "msg_1", topic: "orders", durability: "synced" };
const BROKEN = new TypeError("connection reset");

test("a send that gets no answer is repeated with the same key", async () => {
  const answers = [BROKEN, refused(503, "overloaded"), RECEIPT];
  const { client, clock, calls } = fakeService(() => answers.shift());

  const sent = client.send("orders", { json: 1 });
  await clock.advance(1_000);

  assert.deepEqual(await sent, RECEIPT);
  const keys = calls.map(({ headers }) => headers.get("idempotency-key"));
  assert.equal(keys.length, 3);
  assert.equal(new Set(keys).size, 1);
  assert.match(keys[0] ?? "", /^[\da-f-]{36}$/);
});

test("a body that is no JSON is an error of the program, and is not repeated", async () => {
  const { client, clock, calls } = fakeService(() => RECEIPT);
  const circle: Record<string, unknown> = {};
  circle["itself"] = circle;

  for (const json of [1n, circle]) {
    await assert.rejects(client.send("orders", { json }), TypeError);
  }

  assert.equal(calls.length, 0);
  assert.equal(clock.now(), 0);
});

test("a send to which a proxy got no answer is repeated", async () => {
  const answers = [new Response("<html>", { status: 502 }), RECEIPT];
  const { client, clock, calls } = fakeService(() => answers.shift());

  const sent = client.send("orders", { json: 1 });
  await clock.advance(1_000);

  assert.deepEqual(await sent, RECEIPT);
  assert.equal(calls.length, 2);
});

test("a receive that is repeated keeps its attempt id", async () => {
  const answers = [BROKEN, { server_time: "", messages: [] }];
  const { client, clock, calls } = fakeService(() => answers.shift());

  const received = client.receive("billing");
  await clock.advance(1_000);

  assert.deepEqual((await received).messages, []);
  assert.equal(calls.length, 2);
  assert.equal(calls[0]?.body.attempt_id, calls[1]?.body.attempt_id);
});

test("pauses are a random part of a limit that doubles, up to a total", async () => {
  const times: number[] = [];
  const { client, clock } = fakeService(() => {
    times.push(clock.now());
    return BROKEN;
  });
  const sent = client.send("orders", { json: 1 }, { retry: { totalMs: 1_000 } });
  const failed = assert.rejects(sent, Unreachable);

  await clock.advance(5_000);

  await failed;
  assert.deepEqual(times, [0, 50, 150, 350, 750]);
});

test("the pause is what the service asks for", async () => {
  const answers = [respond(503, problem(503, "overloaded"), { "retry-after": "7" }), RECEIPT];
  const { client, clock } = fakeService(() => answers.shift());

  const sent = client.send("orders", { json: 1 });
  let isSent = false;
  void sent.then(() => (isSent = true));
  await clock.advance(6_999);
  assert.equal(isSent, false);
  await clock.advance(1);

  assert.deepEqual(await sent, RECEIPT);
});

test("retry_after_ms of the problem counts before the header", async () => {
  const busy = { ...problem(429, "too_many_waiting"), retry_after_ms: 1_500 };
  const { client } = fakeService(() => respond(429, busy, { "retry-after": "9" }));

  const failed = client.send("orders", { json: 1 }, { retry: { totalMs: 0 } });

  await assert.rejects(failed, { retryAfterMs: 1_500, status: 429 });
});

test("a refusal that is not transient is thrown at once, with its problem", async () => {
  const { client, calls } = fakeService(() => refused(409, "transaction_already_resolved"));

  await assert.rejects(client.commit("order-1"), (error: unknown) => {
    assert.ok(error instanceof ProblemError);
    assert.equal(error.name, "ProblemError");
    assert.equal(error.code, "transaction_already_resolved");
    assert.deepEqual([error.status, error.retryable], [409, false]);
    return true;
  });
  assert.equal(calls.length, 1);
});

test("a code that is not known is judged by what the problem says of it", async () => {
  const answers = [refused(409, "brand_new", true), RECEIPT];
  const { client, clock } = fakeService(() => answers.shift());

  const sent = client.send("orders", { json: 1 });
  await clock.advance(1_000);

  assert.deepEqual(await sent, RECEIPT);
});

test("a reply that did not come in time is never asked for again", async () => {
  const { client, calls } = fakeService(() => refused(504, "reply_timeout", true));

  await assert.rejects(client.request("prices", { json: 1 }), { code: "reply_timeout" });

  assert.equal(calls.length, 1);
});

test("a response that is no problem document is an error with its status", async () => {
  const { client } = fakeService(() => new Response("<html>", { status: 500 }));

  await assert.rejects(client.commit("order-1"), { code: "http_500", status: 500 });
});

/** Every operation as the tests of the document call it, with a name in each part of its path. */
function callOf(client: EscrowMQ, name: string): Promise<unknown> {
  const [method = "", path = ""] = name.split(" ");
  const parts = [...path.matchAll(/{(\w+)}/g)].map(([, part]) => [part, "a"]);
  const api = client.api as unknown as Record<
    string,
    (path: string, init: object) => Promise<unknown>
  >;
  return (api[method] as Api["POST"])(
    path as never,
    {
      params: { path: Object.fromEntries(parts) },
      body: {},
    } as never,
  );
}

test("an operation that acts each time is not repeated once it may have acted", async () => {
  assert.ok(SENT_ONCE.size > 0);
  for (const name of SENT_ONCE) {
    for (const lost of [BROKEN, new Response("<html>", { status: 502 }), refused(503, "lost")]) {
      const { client, clock, calls } = fakeService(() => lost);
      const failed = assert.rejects(callOf(client, name));
      await clock.advance(60_000);
      await failed;
      assert.equal(calls.length, 1, name);
      assert.equal(calls[0]?.headers.get("idempotency-key"), null);
    }
  }
});

test("an operation that acts each time is repeated where it has not acted", async () => {
  const refusedConnection = Object.assign(new Error("refused"), { syscall: "connect" });
  const each = new AggregateError([refusedConnection, refusedConnection]);
  for (const name of SENT_ONCE) {
    const answers = [
      new TypeError("fetch failed", { cause: refusedConnection }),
      new TypeError("fetch failed", { cause: each }),
      refused(429, "overloaded", true),
      { done: true },
    ];
    const { client, clock, calls } = fakeService(() => answers.shift());
    const sent = callOf(client, name);
    await clock.advance(60_000);
    assert.deepEqual(await sent, { done: true });
    assert.equal(calls.length, 4, name);
  }
});

test("a change of a revision whose answer was lost has an unknown outcome", async (t) => {
  let revision = 1;
  let losses = 0;
  const server = createServer((request, response) => {
    if (request.headers["if-match"] !== `"${revision}"`) {
      response.writeHead(412).end(JSON.stringify(problem(412, "revision_mismatch")));
      return;
    }
    revision++; // the change is made
    if (losses-- > 0) return void response.destroy();
    response.writeHead(502).end("<html>"); // of a proxy
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const client = new EscrowMQ({ url, retry: { totalMs: 60_000, firstMs: 1, maxMs: 1 } });
  const header = (of: number) => ({ "If-Match": `"${of}"` });
  const topic = { topic: "orders" };
  const changes = [
    (of: number) =>
      client.api.PATCH("/v1/topics/{topic}", {
        params: { path: topic, header: header(of) },
        body: { queues: 9 },
      }),
    (of: number) =>
      client.api.PUT("/v1/groups/{group}", {
        params: { path: { group: "billing" }, header: header(of) },
        body: {},
      }),
    (of: number) =>
      client.api.DELETE("/v1/topics/{topic}", { params: { path: topic, header: header(of) } }),
  ];

  for (const lost of [1, 0]) {
    for (const change of changes) {
      losses = lost;
      const before = revision;
      await assert.rejects(change(before), (error: unknown) => {
        assert.ok(error instanceof Unreachable);
        assert.ok(error.outcomeUnknown);
        assert.match(error.message, /; sent again: 412 revision_mismatch: .* or another one has$/);
        assert.equal((error.cause as ProblemError).status, 412);
        return true;
      });
      assert.equal(revision, before + 1);
      await assert.rejects(change(before), { name: "ProblemError", status: 412 }); // of another one
    }
  }
});

/** Errors of `fetch`, and what a proxy answers, where the answer of the service is lost. */
const LOST = [
  () => new TypeError("fetch failed", { cause: new Error("other side closed") }),
  () => new Response("<html>", { status: 502 }),
];

test("a removal whose answer was lost is done if it finds nothing then", async () => {
  const path = { topic: "a", group: "a", member_id: "a", node: "a", report_id: "a" };
  assert.ok(REMOVING.size > 0);
  for (const name of REMOVING) {
    for (const lost of LOST) {
      const answers = [lost(), refused(404, "topic_not_found"), refused(404, "topic_not_found")];
      const { client, clock } = fakeService(() => answers.shift());
      const route = name.split(" ")[1] as "/v1/topics/{topic}";
      const remove = () => client.api.DELETE(route, { params: { path } });

      const removed = remove();
      await clock.advance(60_000);

      assert.equal(await removed, undefined, name);
      await assert.rejects(remove(), { name: "ProblemError", status: 404 });
      assert.equal(answers.length, 0);
    }
  }
});

test("what removes nothing, or has lost no answer, is refused as it is", async () => {
  const path = { topic: "orders" };
  const [lost] = LOST;
  const noTopic = () => refused(404, "topic_not_found");
  for (const [query, ...answers] of [
    [{ dry_run: true }, lost?.(), noTopic()],
    [{}, refused(503, "overloaded", true), noTopic()],
    [{}, lost?.(), new Response("<html>", { status: 404 })], // of a proxy
  ] as [{ dry_run?: boolean }, unknown, unknown][]) {
    const { client, clock } = fakeService(() => answers.shift());

    const removed = client.api.DELETE("/v1/topics/{topic}", { params: { path, query } });
    const failed = assert.rejects(removed, { name: "ProblemError", status: 404 });
    await clock.advance(60_000);

    await failed;
    assert.equal(answers.length, 0);
  }
});

test("a change of a revision that was never sent before is refused as it is", async () => {
  const unsent = new TypeError("fetch failed", {
    cause: Object.assign(new Error("connect ECONNREFUSED"), { syscall: "connect" }),
  });
  const answers = [unsent, refused(412, "revision_mismatch")];
  const { client, clock } = fakeService(() => answers.shift());
  const params = { path: { topic: "orders" }, header: { "If-Match": '"1"' } };

  const changed = client.api.PATCH("/v1/topics/{topic}", { params, body: { queues: 9 } });
  const failed = assert.rejects(changed, { name: "ProblemError", status: 412 });
  await clock.advance(1_000);

  await failed;
  assert.equal(answers.length, 0);
});

test("an id that would lead to another resource is refused before a request", async () => {
  const { client, calls } = fakeService(() => RECEIPT);
  const path = "/v1/groups/{group}/members/{member_id}";
  for (const member_id of ["..", ".", ""]) {
    const params = { path: { group: "billing", member_id } };
    await assert.rejects(client.api.DELETE(path, { params }), TypeError);
  }
  await assert.rejects(client.commit(".."), TypeError);

  assert.equal(calls.length, 0);
});

test("a key that no header can have is refused, and not shown", () => {
  for (const apiKey of ["secret\nkey", "secret\u{1f511}"]) {
    assert.throws(
      () => new EscrowMQ({ url: "http://service.test", apiKey }),
      (error: unknown) => error instanceof TypeError && !error.message.includes("secret"),
    );
  }
});

test("a machine that accepts and never answers is left for the next within a send", async () => {
  const { client, clock, calls } = fakeService(
    ({ host }) => (host === "hung.test" ? silence : RECEIPT),
    { url: "http://hung.test,http://good.test" },
  );

  const sent = client.send("orders", { json: 1 });
  await clock.advance(11_000);

  assert.deepEqual(await sent, RECEIPT);
  assert.deepEqual(
    calls.map(({ host }) => host),
    ["hung.test", "good.test"],
  );
});

test("a machine that does not answer in the time of a call is left for the next call", async () => {
  const { client, calls } = fakeService(({ host }) => (host === "hung.test" ? silence : RECEIPT), {
    url: "http://hung.test,http://good.test",
  });
  // The signal has the time of the process; that of the client does not move without a test.
  const clock = client.clock as ManualClock;
  const late = new AbortController();

  const failed = assert.rejects(client.send("orders", { json: 1 }, { signal: late.signal }));
  await clock.advance(1_000);
  late.abort(new DOMException("over", "TimeoutError"));
  await failed;

  assert.deepEqual(await client.send("orders", { json: 1 }), RECEIPT);
  assert.equal(calls.at(-1)?.host, "good.test");
});

test("an answer may take longer than a try waits, as long as parts of it come", async () => {
  const text = JSON.stringify(RECEIPT);
  const parts = [text.slice(0, 10), text.slice(10, 20), text.slice(20)];
  const { client, clock } = fakeService(() => inParts(clock, parts));

  const sent = client.send("orders", { json: 1 });
  await clock.advance(30_000);

  assert.deepEqual(await sent, RECEIPT);
});

test("an answer that does not go on is asked for again", async () => {
  const answers: unknown[] = [];
  const { client, clock, calls } = fakeService(() => answers.shift());
  answers.push(inParts(clock, ['{"message_id":'], "open"), RECEIPT);

  const sent = client.send("orders", { json: 1 });
  await clock.advance(20_000);

  assert.deepEqual(await sent, RECEIPT);
  assert.equal(calls.length, 2);
});

/** An answer of which a part comes every 9 seconds; `open`: it does not end. */
function inParts(clock: ManualClock, parts: string[], end: "open" | "" = ""): Response {
  const left = [...parts];
  const body = new ReadableStream<Uint8Array>({
    async pull(stream) {
      const part = left.shift();
      if (part === undefined) {
        if (end === "open") await silence;
        return stream.close();
      }
      await clock.sleep(9_000);
      stream.enqueue(new TextEncoder().encode(part));
    },
  });
  return new Response(body, { status: 200, headers: { "content-type": "application/json" } });
}

test("a try ends after its timeout, to which the time of a long poll is added", async () => {
  const { client, clock } = fakeService(() => silence);
  const wanted = { wait_ms: 20_000 };
  const received = client.receive("billing", wanted, { retry: { totalMs: 0 }, timeoutMs: 1_000 });
  let isOver = false;
  const failed = assert.rejects(received, Unreachable).then(() => (isOver = true));

  await clock.advance(20_999);
  assert.equal(isOver, false);
  await clock.advance(1);

  await failed;
});

test("a signal ends a call with its own reason, also in a pause", async () => {
  const { client, clock, calls } = fakeService(() => BROKEN);
  const controller = new AbortController();
  const sent = client.send("orders", { json: 1 }, { signal: controller.signal });
  const failed = assert.rejects(sent, /enough/);
  await clock.advance(10);

  controller.abort(new Error("enough"));

  await failed;
  assert.equal(calls.length, 1);
});

test("a refused entry of a batch is thrown with the whole answer", async () => {
  const results = [{ status: 200 }, { status: 409, problem: problem(409, "lease_expired") }];
  const answer = { accepted: 1, rejected: 1, results };
  const { client } = fakeService(() => respond(207, answer));

  await assert.rejects(client.ack("billing", [{ receipt_handle: "lh_1" }]), (error: unknown) => {
    assert.ok(error instanceof RefusedEntries);
    assert.deepEqual(error.answer, answer);
    assert.match(error.message, /1 of 2 entries were refused: lease_expired \(1\)/);
    return true;
  });
});

test("each operation that takes an idempotency key gets one", async () => {
  assert.ok(KEYED.has("POST /v1/transactions"));
  for (const name of KEYED) {
    const { client, calls } = fakeService(() => RECEIPT);
    await callOf(client, name);
    assert.match(calls[0]?.headers.get("idempotency-key") ?? "", /^[\da-f-]{36}$/, name);
  }
});

test("the operations are those of the document that take a key, or that act each time", () => {
  const file = process.env["OPENAPI"] ?? "../../openapi/openapi.json";
  const { paths } = JSON.parse(readFileSync(file, "utf8")) as {
    paths: Record<string, Record<string, Described>>;
  };
  const named = (isChosen: (one: Described) => boolean): string[] =>
    Object.entries(paths).flatMap(([path, item]) =>
      Object.entries(item)
        .filter(([, one]) => isChosen(one))
        .map(([method]) => `${method.toUpperCase()} ${path}`),
    );

  const takesKey = ({ parameters = [] }: Described): boolean =>
    parameters.some(({ name }) => name === "Idempotency-Key");
  assert.deepEqual([...KEYED].sort(), named(takesKey).sort());
  const removes = ({ responses }: Described): boolean => "204" in responses;
  assert.deepEqual([...REMOVING].sort(), named(removes).sort());
  assert.deepEqual([...SENT_ONCE].sort(), named((one) => one["x-send-once"] === true).sort());
});

interface Described {
  parameters?: { name: string }[];
  responses: Record<string, unknown>;
  "x-send-once"?: boolean;
}

test("the key goes along as a bearer token", async () => {
  const { client, calls } = fakeService(() => RECEIPT);

  await client.send("orders", { json: 1 }, { idempotencyKey: "mine" });

  assert.equal(calls[0]?.headers.get("authorization"), "Bearer a-key");
  assert.equal(calls[0]?.headers.get("idempotency-key"), "mine");
});

test("a client needs an address that is one", () => {
  assert.throws(() => new EscrowMQ({ url: "not an address" }), /Invalid URL/);
  assert.throws(() => new EscrowMQ({ url: "localhost:8080" }), /needs http/);
});

test("a call that gets no answer says where it went, and what failed first", async () => {
  const refusal = Object.assign(new Error(""), { code: "ECONNREFUSED" });
  const failed = new TypeError("fetch failed", { cause: refusal });
  const { client } = fakeService(() => failed, { retry: { totalMs: 0 } });

  await assert.rejects(
    client.commit("order-1"),
    /^Unreachable: no response from POST \/v1\S+commit at service.test: ECONNREFUSED$/,
  );
});

test("a variable of the environment that is empty is none", async (t) => {
  t.after(() => {
    delete process.env["ESCROWMQ_API_KEY"];
    delete process.env["ESCROWMQ_URL"];
  });
  process.env["ESCROWMQ_API_KEY"] = process.env["ESCROWMQ_URL"] = "";
  assert.throws(() => new EscrowMQ(), /set ESCROWMQ_URL/);
  const { client, calls } = fakeService(() => RECEIPT, { apiKey: undefined });

  await client.send("orders", { json: 1 });

  assert.equal(calls[0]?.headers.get("authorization"), null);
});

test("each try that is repeated is reported to the call", async () => {
  const answers = [BROKEN, refused(503, "overloaded", true), RECEIPT];
  const { client, clock } = fakeService(() => answers.shift());
  const errors: unknown[] = [];

  const sent = client.send("orders", { json: 1 }, { onRetry: (error) => errors.push(error) });
  await clock.advance(1_000);
  await sent;

  assert.deepEqual(
    errors.map((error) => (error as Error).name),
    ["Unreachable", "ProblemError"],
  );
});

test("an answer of a proxy is the cause of what it says of the service", async () => {
  const { client } = fakeService(() => new Response("<html>", { status: 502 }), {
    retry: { totalMs: 0 },
  });

  await assert.rejects(client.commit("order-1"), (error: unknown) => {
    assert.ok(error instanceof Unreachable);
    assert.equal((error.cause as ProblemError).status, 502);
    return true;
  });
});

test("an error keeps its name when its class is renamed, and has no cause without one", () => {
  const classes = Object.entries(exported).filter(
    ([, value]) => typeof value === "function" && value.prototype instanceof EscrowMQError,
  );
  assert.ok(classes.length >= 12);
  for (const [name, value] of classes) {
    const Renamed = class a extends (value as new (...args: unknown[]) => EscrowMQError) {};
    const error = new Renamed({}, undefined);
    assert.equal(error.name, name);
    assert.ok(error.cause !== undefined || !("cause" in error), name);
  }
});

test("the words of a request are those that the service knows, those of a response any", () => {
  const group: Schemas["ProducerGroupInput"] = { check_mode: "webhook" };
  // @ts-expect-error: there is no such mode
  group.check_mode = "webhok";
  const code: Schemas["Problem"]["code"] = "a code of a later version";

  assert.equal(code.length, 25);
});

test("a pause that is longer than a timer can take does not end at once", async () => {
  const stop = new AbortController();
  const pause = systemClock.sleep(Infinity, stop.signal).then(() => "ended");

  const first = await Promise.race([pause, systemClock.sleep(20).then(() => "goes on")]);

  stop.abort();
  assert.equal(first, "goes on");
  assert.equal(await pause, "ended");
});
