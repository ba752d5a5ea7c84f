import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { test } from "node:test";
import {
  checkHandler,
  InvalidSignature,
  nodeCheckHandler,
  type Secrets,
  verify,
} from "../../src/index.js";
import { settled } from "./support.js";

const SECRET = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;
const OTHER = `whsec_${Buffer.alloc(32, 8).toString("base64")}`;
const NOW = 1_700_000_000;
const CHECK = { kind: "transaction.check", check_id: "chk_1", transaction_id: "order-1" };
const BODY = JSON.stringify({ ...CHECK, age_ms: 1, answer_number: 1 });

function signed(secret: string, body: string, at = NOW, id = "chk_1"): Record<string, string> {
  const key = Buffer.from(secret.slice("whsec_".length), "base64");
  const signature = createHmac("sha256", key).update(`${id}.${at}.${body}`).digest("base64");
  return { "webhook-id": id, "webhook-timestamp": `${at}`, "webhook-signature": `v1,${signature}` };
}

const now = { nowMs: NOW * 1_000 };

test("the id of a signed request is returned, for any of the secrets", () => {
  const headers = signed(SECRET, BODY);

  assert.equal(verify([OTHER, SECRET], headers, BODY, now), "chk_1");
  assert.equal(verify([SECRET], new Headers(headers), Buffer.from(BODY), now), "chk_1");
  const canonical = Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [name.toUpperCase(), value]),
  );
  assert.equal(verify([SECRET], canonical, BODY, now), "chk_1");
});

test("headers of a class of a framework's own are read by their method", () => {
  const headers = new Map(Object.entries(signed(SECRET, BODY)));
  class Theirs {
    get = (name: string): string | null => headers.get(name) ?? null;
  }

  assert.equal(verify([SECRET], new Theirs(), BODY, now), "chk_1");
});

test("the vector of the specification is verified", () => {
  // standardwebhooks.com, from the reference implementations
  const headers = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
  };
  const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
  const at = { nowMs: 1_614_265_330_000 };

  assert.equal(verify([secret], headers, '{"test": 2432232314}', at), headers["webhook-id"]);
});

for (const [name, headers, body] of [
  ["another secret", signed(OTHER, BODY), BODY],
  ["another body", signed(SECRET, BODY), `${BODY} `],
  ["another id", { ...signed(SECRET, BODY), "webhook-id": "chk_2" }, BODY],
  ["an old timestamp", signed(SECRET, BODY, NOW - 301), BODY],
  ["a timestamp in the future", signed(SECRET, BODY, NOW + 301), BODY],
  ["no timestamp", { ...signed(SECRET, BODY), "webhook-timestamp": "" }, BODY],
  ["a timestamp that is no number", { ...signed(SECRET, BODY), "webhook-timestamp": "1e9" }, BODY],
  ["another version", { ...signed(SECRET, BODY), "webhook-signature": "v2,abc" }, BODY],
] as const) {
  test(`a request with ${name} is not accepted`, () => {
    assert.throws(() => verify([SECRET], headers, body, now), InvalidSignature);
  });
}

test("a body that was parsed already is a mistake of the program", () => {
  const parsed = JSON.parse(BODY) as Uint8Array;

  assert.throws(() => verify([SECRET], signed(SECRET, BODY), parsed, now), TypeError);
});

test("a secret that is none is named without its text", () => {
  const wrong = "whsec_c2hvcnQ=";

  assert.throws(
    () => verify([wrong], signed(SECRET, BODY), BODY, now),
    (error: Error) => error instanceof TypeError && !error.message.includes("c2hvcnQ"),
  );
});

function request(headers: Record<string, string>, body: string): Request {
  return new Request("http://shop.test/check", { method: "POST", headers, body });
}

const today = (): number => Math.floor(Date.now() / 1_000);

test("a check is answered with 200 and the decision that was looked up", async () => {
  const asked: unknown[] = [];
  const handler = checkHandler([SECRET], (id, { answer_number }) => {
    asked.push([id, answer_number]);
    return "commit";
  });

  const response = await handler(request(signed(SECRET, BODY, today()), BODY));

  assert.equal(response.status, 200);
  assert.equal(response.headers.get("content-type"), "application/json");
  assert.deepEqual(await response.json(), { decision: "commit" });
  assert.deepEqual(asked, [["order-1", 1]]);
});

for (const [status, name, body, secret] of [
  [401, "is not signed by its secret", BODY, OTHER],
  [400, "is no JSON", "{", SECRET],
  [400, "has no transaction id", "{}", SECRET],
] as const) {
  test(`a request that ${name} is answered with ${status}`, async () => {
    const handler = checkHandler([SECRET], () => assert.fail("nothing is looked up"));

    const response = await handler(request(signed(secret, body, today()), body));

    assert.equal(response.status, status);
  });
}

test("a lookup that fails is 500, which is no answer", async () => {
  const errors: unknown[] = [];
  const handler = checkHandler([SECRET], () => Promise.reject(new Error("database away")), {
    onError: (error) => errors.push(error),
  });

  const response = await handler(request(signed(SECRET, BODY, today()), BODY));

  assert.equal(response.status, 500);
  assert.doesNotMatch(await response.text(), /database away/);
  assert.match(String(errors[0]), /database away/);
});

test("secrets may be looked up for each request", async () => {
  const handler = checkHandler(
    () => Promise.resolve([OTHER, SECRET]),
    () => "rollback",
  );

  const response = await handler(request(signed(SECRET, BODY, today()), BODY));

  assert.deepEqual(await response.json(), { decision: "rollback" });
});

test("with Express the handler takes the raw body", async () => {
  const handler = nodeCheckHandler([SECRET], () => "unknown");
  const written: unknown[] = [];

  const headers = signed(SECRET, BODY, today());
  const response = {
    writeHead: (status: number) => written.push(status),
    end: (body: string) => written.push(JSON.parse(body)),
  };
  const none = { async *[Symbol.asyncIterator]() {} };
  await handler({ headers, body: Buffer.from(BODY), ...none }, response);

  assert.deepEqual(written, [200, { decision: "unknown" }]);
});

/** A server of Node with the handler, its first request, and how each of them ended. */
async function served(handler: ReturnType<typeof nodeCheckHandler>) {
  const ends: string[] = [];
  const server = createServer((request, response) => {
    handler(request, response).then(
      () => ends.push("resolved"),
      () => ends.push("rejected"),
    );
  });
  const begun = once(server, "request");
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = (): void => {
    server.close();
    server.closeAllConnections();
  };
  return { port: (server.address() as AddressInfo).port, begun, ends, close };
}

test("a request that is broken off in its body leaves the program running", async () => {
  const { port, begun, ends, close } = await served(nodeCheckHandler([SECRET], () => "commit"));

  const socket = connect(port, "127.0.0.1");
  socket.write("POST / HTTP/1.1\r\nhost: shop\r\ncontent-length: 100\r\n\r\nhalf");
  await begun;
  socket.destroy();
  while (ends.length === 0) await settled();
  close();

  assert.deepEqual(ends, ["resolved"]);
});

test("a body longer than that of any check is refused before it has arrived", async () => {
  const { port, ends, close } = await served(nodeCheckHandler([SECRET], () => "commit"));

  const socket = connect(port, "127.0.0.1");
  socket.write("POST / HTTP/1.1\r\nhost: shop\r\ncontent-length: 20000000\r\n\r\n");
  socket.write("x".repeat(65_537));
  const answer = await new Promise((resolve) => socket.once("data", resolve));
  close();

  assert.match(String(answer), /^HTTP\/1.1 413 /);
  assert.deepEqual(ends, ["resolved"]);
  const web = checkHandler([SECRET], () => "commit");
  assert.equal((await web(request({}, "x".repeat(65_537)))).status, 413);
});

for (const [name, secrets] of [
  ["cannot be looked up", () => Promise.reject(new Error("vault away"))],
  ["are malformed", () => ["whsec_c2hvcnQ="]],
  ["are empty", () => [""]],
  ["are none", () => []],
] as [string, Secrets][]) {
  test(`a request while the secrets ${name} is answered with 500`, async () => {
    const errors: unknown[] = [];
    const onError = (error: unknown): unknown => errors.push(error);
    const handler = nodeCheckHandler(secrets, () => "commit", { onError });
    const { port, ends, close } = await served(handler);

    const headers = signed(SECRET, BODY, today());
    const sent = { method: "POST", headers, body: BODY };
    const { status } = await fetch(`http://127.0.0.1:${port}`, sent);
    close();

    assert.equal(status, 500);
    assert.deepEqual([ends, errors.length], [["resolved"], 1]);
  });
}

for (const secrets of [[], [""], ["whsec_c2hvcnQ="], [undefined as unknown as string]]) {
  test(`a handler with the secrets ${JSON.stringify(secrets)} is not made`, () => {
    assert.throws(() => nodeCheckHandler(secrets, () => "commit"), TypeError);
    assert.throws(() => checkHandler(secrets, () => "commit"), TypeError);
  });
}

test("a lookup without a decision is 500, which is no answer", async () => {
  const answer = (() => undefined) as unknown as () => "commit";
  const handler = checkHandler([SECRET], answer, { onError: () => undefined });

  const response = await handler(request(signed(SECRET, BODY, today()), BODY));

  assert.equal(response.status, 500);
});

test("an onError that throws does not keep back the answer of a handler", async (t) => {
  const log = t.mock.method(console, "error", () => undefined);
  const onError = (): void => {
    throw new Error("the log is full");
  };
  const answer = (): never => {
    throw new Error("database away");
  };
  const handler = checkHandler([SECRET], answer, { onError });
  const headers = signed(SECRET, BODY, Math.floor(Date.now() / 1_000));

  const request = new Request("http://shop.test", { method: "POST", headers, body: BODY });

  assert.equal((await handler(request)).status, 500);
  assert.equal(log.mock.callCount(), 1);
});
