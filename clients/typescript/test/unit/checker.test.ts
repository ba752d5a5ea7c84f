import assert from "node:assert/strict";
import { test } from "node:test";
import { format } from "node:util";
import { type AnswerCheck, type CheckAnswer, Checker, RefusedEntries } from "../../src/index.js";
import { fakeService, problem, refused, respond, silence } from "./support.js";

const GROUP = "GET /v1/producer-groups/shop";
const RECEIVE = "POST /v1/producer-groups/shop/checks/receive";
const CHECKS = [
  { check_id: "chk_1", transaction_id: "order-1", answer_number: 1, age_ms: 1 },
  { check_id: "chk_2", transaction_id: "order-2", answer_number: 1, age_ms: 1 },
];

function world(answer: AnswerCheck, answered: unknown = { accepted: 2, rejected: 0, results: [] }) {
  const checks = [CHECKS];
  const errors: unknown[] = [];
  const service = fakeService(({ operation }) => {
    if (operation === GROUP) return {};
    return operation === RECEIVE ? { checks: checks.shift() ?? [] } : answered;
  });
  const onError = (error: unknown): unknown => errors.push(error);
  return { ...service, errors, checker: new Checker(service.client, "shop", answer, { onError }) };
}

test("checks are answered with what is looked up, in one request", async () => {
  const { checker, calls } = world((id) => (id === "order-1" ? "commit" : "rollback"));

  assert.equal(await checker.runOnce(), 2);

  assert.deepEqual(calls[2]?.body.answers, [
    { check_id: "chk_1", decision: "commit" },
    { check_id: "chk_2", decision: "rollback" },
  ]);
});

test("a lookup that fails is answered unknown, with the reason as evidence", async () => {
  const { checker, calls, errors } = world((id) => {
    if (id === "order-1") throw new Error("database away");
    return { decision: "commit", evidence: { row: "2" } };
  });

  await checker.runOnce();

  assert.deepEqual(calls[2]?.body.answers, [
    { check_id: "chk_1", decision: "unknown", evidence: { reason: "Error: database away" } },
    { check_id: "chk_2", decision: "commit", evidence: { row: "2" } },
  ]);
  assert.match(String(errors[0]), /database away/);
});

test("without onError, the console names the transaction whose lookup failed", async (t) => {
  const lines: string[] = [];
  t.mock.method(console, "error", (...parts: unknown[]) => lines.push(parts.join("")));
  const { client } = world(() => "commit");
  const checker = new Checker(client, "shop", (id) => {
    if (id === "order-1") throw new Error("database away");
    return "commit";
  });

  await checker.runOnce();

  assert.equal(lines.length, 1);
  assert.match(
    lines[0] ?? "",
    /^producer group shop: the lookup of order-1 failed; .* checked again\nError: database away/,
  );
});

test("a lookup whose error the console cannot write is answered unknown", async (t) => {
  t.mock.method(console, "error", (...parts: unknown[]) => void format(...parts));
  const { client, calls } = world(() => "commit");
  const checker = new Checker(client, "shop", (id) => {
    if (id === "order-1") throw Object.assign(new Error("odd"), { name: Symbol("odd") });
    return "commit";
  });

  assert.equal(await checker.runOnce(), 2);

  const decisions = calls[2]?.body.answers.map(({ decision }: CheckAnswer) => decision);
  assert.deepEqual(decisions, ["unknown", "commit"]);
});

test("an answer that is refused is reported, and the others count", async () => {
  const results = [{ status: 200 }, { status: 409, problem: problem(409, "check_not_open") }];
  const { checker, errors } = world(
    () => "commit",
    respond(207, { accepted: 1, rejected: 1, results }),
  );

  assert.equal(await checker.runOnce(), 1);

  assert.ok(errors[0] instanceof RefusedEntries);
});

test("a checker goes on after a service that is away, and ends with its signal", async () => {
  const answers: unknown[] = [{}, { checks: [] }];
  const errors: unknown[] = [];
  const { client, clock, calls } = fakeService(() =>
    clock.now() < 40_000 ? new TypeError("away") : (answers.shift() ?? silence),
  );
  const checker = new Checker(client, "shop", () => "commit", { onError: (e) => errors.push(e) });
  const stop = new AbortController();
  const running = checker.run({ signal: stop.signal });

  await clock.advance(60_000);
  stop.abort();
  await running;

  assert.ok(errors.length >= 1);
  assert.equal(answers.length, 0);
  assert.equal(calls.at(-1)?.operation, RECEIVE);
});

test("a checker reports an outage at its first failed try, and when it ends", async () => {
  const times: number[] = [];
  const ends: number[] = [];
  const { client, clock, calls } = fakeService(({ operation, body }) => {
    if (clock.now() < 20_000) return new TypeError("away");
    if (operation === GROUP) return {};
    return body.wait_ms === 0 ? { checks: [] } : silence;
  });
  const checker = new Checker(client, "shop", () => "commit", {
    onError: () => times.push(clock.now()),
    onRecovery: (awayMs) => ends.push(awayMs),
  });
  const stop = new AbortController();
  const running = checker.run({ signal: stop.signal });

  await clock.advance(25_000);
  stop.abort();
  await running;

  assert.deepEqual(times, [0]);
  assert.equal(ends.length, 1);
  assert.ok(calls.length > 5 && calls.length < 20, `${calls.length}`);
});

test("a lookup that throws a value without a text is answered unknown", async () => {
  const { checker, calls } = world(() => {
    throw Object.create(null);
  });

  await checker.runOnce();

  const evidence = { reason: "no reason" };
  assert.deepEqual(calls[2]?.body.answers[0].evidence, evidence);
});

test("a lookup that takes too long is answered unknown, and delays no other", async () => {
  const { checker, calls, clock, errors } = world((id) =>
    id === "order-1" ? new Promise(() => undefined) : "commit",
  );
  const answered = checker.runOnce();

  await clock.advance(10_000);
  await answered;

  const evidence = { reason: "Error: the lookup took more than 10000 ms" };
  assert.deepEqual(calls[2]?.body.answers, [
    { check_id: "chk_1", decision: "unknown", evidence },
    { check_id: "chk_2", decision: "commit" },
  ]);
  assert.equal(errors.length, 1);
});

test("a producer group that does not exist is reported once, and not created", async (t) => {
  const log = t.mock.method(console, "error", () => undefined);
  let exists = false;
  const { client, clock, operations } = fakeService(({ operation }) => {
    if (operation === RECEIVE) return silence;
    return exists ? {} : refused(404, "producer_group_not_found");
  });
  const stop = new AbortController();
  const checker = new Checker(client, "shop", () => "commit");
  const running = checker.run({ signal: stop.signal });

  await clock.advance(45_000);
  assert.deepEqual(operations(), [GROUP, GROUP, GROUP]);
  exists = true;
  await clock.advance(20_000);
  stop.abort();
  await running;

  assert.deepEqual(operations().slice(3), [GROUP, RECEIVE]);
  const lines = log.mock.calls.map(({ arguments: [line] }) => line);
  assert.equal(lines.length, 1);
  assert.match(String(lines[0]), /^producer group shop: .* does not exist, .* another name/);
});

test("a checker that stops does not wait for its producer group", async () => {
  const errors: unknown[] = [];
  const { client, clock } = fakeService(() => refused(404, "producer_group_not_found"));
  const checker = new Checker(client, "shop", () => "commit", { onError: (e) => errors.push(e) });
  const stop = new AbortController();
  const running = checker.run({ signal: stop.signal });

  await clock.advance(1_000);
  stop.abort();
  await running;

  assert.equal(clock.now(), 1_000);
  assert.match(String(errors), /^EscrowMQError: producer group shop does not exist/);
});

test("a checker without a key ends with the refusal", async () => {
  const { client } = fakeService(() => refused(401, "unauthenticated"));

  await assert.rejects(new Checker(client, "shop", () => "commit").run(), { status: 401 });
});
