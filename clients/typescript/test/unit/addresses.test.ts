import assert from "node:assert/strict";
import { test } from "node:test";
import { Addresses } from "../../src/addresses.js";
import { EscrowMQ, ProblemError } from "../../src/index.js";
import { type Answers, type Call, fakeService, problem, refused, respond } from "./support.js";

const RECEIPT = { message_id: "msg_1", topic: "orders", durability: "synced" };
const GONE = new TypeError("connection refused");

/** Machines by their hosts. */
function fakeMachines(url: string, machines: Record<string, Answers>) {
  return fakeService((call) => machines[call.host]?.(call) ?? GONE, { url });
}

const leadsTo = (primary?: string): Response =>
  respond(421, { ...problem(421, "not_primary"), context: primary ? { primary } : {} });
const stored = (): unknown => RECEIPT;
const hosts = (calls: Call[]): string[] => calls.map(({ host }) => host);

test("a replica leads to its service, and the next request goes there at once", async () => {
  const { client, clock, calls } = fakeMachines("http://b", {
    a: stored,
    b: () => leadsTo("http://a/"),
  });

  await client.send("orders", { json: 1 });
  await client.send("orders", { json: 2 });

  assert.deepEqual(hosts(calls), ["b", "a", "a"]);
  assert.equal(clock.now(), 0);
  const [first, second] = calls.map(({ headers }) => headers.get("idempotency-key"));
  assert.equal(first, second);
  assert.equal(calls[1]?.headers.get("authorization"), "Bearer a-key");
});

for (const [name, answer] of Object.entries<Answers>({
  "is gone": () => GONE,
  starts: () => refused(503, "recovering", true),
  stops: () => refused(503, "shutting_down", true),
  "is a replica that knows no service": () => leadsTo(),
  "has a proxy that gets no answer": () => new Response("", { status: 502 }),
})) {
  test(`a machine that ${name} is left for the next`, async () => {
    const { client, clock, calls } = fakeMachines("http://a, http://b", { a: answer, b: stored });

    const sent = client.send("orders", { json: 1 });
    await clock.advance(1_000);
    await sent;
    await client.send("orders", { json: 2 });

    assert.deepEqual(hosts(calls), ["a", "b", "b"]);
  });
}

test("a service that is busy is not left", async () => {
  const answers = [refused(503, "overloaded", true), RECEIPT];
  const { client, clock, calls } = fakeMachines("http://a,http://b", {
    a: () => answers.shift(),
    b: stored,
  });

  const sent = client.send("orders", { json: 1 });
  await clock.advance(1_000);
  await sent;

  assert.deepEqual(hosts(calls), ["a", "a"]);
});

test("replicas that lead in a circle are asked with pauses", async () => {
  const { client, calls } = fakeMachines("http://a", {
    a: () => leadsTo("http://b"),
    b: () => leadsTo("http://a"),
  });

  await assert.rejects(
    client.send("orders", { json: 1 }, { retry: { totalMs: 0 } }),
    (error: unknown) => error instanceof ProblemError && error.code === "not_primary",
  );

  assert.deepEqual(hosts(calls), ["a", "b", "a", "b"]);
});

test("another refusal with 421 is an answer", async () => {
  const answer = { ...problem(421, "host_not_allowed"), context: { primary: "http://b" } };
  const { client, calls } = fakeMachines("http://a", { a: () => respond(421, answer), b: stored });

  await assert.rejects(client.send("orders", { json: 1 }), ProblemError);

  assert.deepEqual(hosts(calls), ["a"]);
});

test("a key is not sent without TLS because a replica says so", async () => {
  for (const primary of ["http://b", "ftp://b", "b", "https://"]) {
    const { client, clock, calls } = fakeMachines("https://a,https://c", {
      a: () => leadsTo(primary),
      b: stored,
      c: stored,
    });
    const sent = client.send("orders", { json: 1 });
    await clock.advance(1_000);
    await sent;
    assert.deepEqual(hosts(calls), ["a", "c"], primary);
  }
});

test("addresses that are none are refused", () => {
  for (const url of [" , ", "shop:8080", "ftp://shop", "http://", "http://a,b"]) {
    assert.throws(() => new EscrowMQ({ url }), TypeError, url);
  }
});

test("the wait grows when every address has failed once more", () => {
  const three = new Addresses("http://a,http://b,http://c");
  assert.deepEqual(
    [1, 2, 3, 4, 6, 7].map((tries) => three.rounds(tries)),
    [1, 1, 1, 2, 2, 3],
  );
  assert.equal(new Addresses("http://a").rounds(7), 7);
});
