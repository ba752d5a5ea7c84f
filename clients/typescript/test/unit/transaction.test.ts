import assert from "node:assert/strict";
import { test } from "node:test";
import {
  CommitPending,
  Fenced,
  IdTaken,
  type MarkerStore,
  NotCommitted,
  NotMarked,
  type Outcome,
  ProblemError,
  type SyncMarkerStore,
} from "../../src/index.js";
import { type Answers, fakeService, problem, refused, respond, settled } from "./support.js";

const BEGIN = "POST /v1/transactions";
const COMMIT = "POST /v1/transactions/order-1/commit";
const ROLLBACK = "POST /v1/transactions/order-1/rollback";
const PREPARED = { transaction_id: "order-1", state: "prepared" };
const BROKEN = new TypeError("connection reset");

/** A database of one table of markers, whose transactions are maps of what they insert. */
class Database implements MarkerStore<Map<string, Outcome>> {
  readonly rows = new Map<string, Outcome>();
  isAway = false;

  async transaction(work: (db: Map<string, Outcome>) => Promise<void>): Promise<void> {
    const inserted = new Map<string, Outcome>();
    await work(inserted);
    for (const [id, outcome] of inserted) this.rows.set(id, outcome);
  }

  async mark(db: Map<string, Outcome>, id: string): Promise<void> {
    if (this.rows.has(id)) throw new Fenced(id);
    db.set(id, "commit");
  }

  readonly outcome = async (id: string): Promise<Outcome> => {
    if (this.isAway) throw new Error("database away");
    if (!this.rows.has(id)) this.rows.set(id, "rollback");
    return this.rows.get(id) as Outcome;
  };

  async create(): Promise<void> {}

  async prune(): Promise<number> {
    return 0;
  }
}

function world(answers: Answers = () => PREPARED) {
  const service = fakeService(answers);
  const markers = new Database();
  return { ...service, markers, options: { id: "order-1", markers } };
}

test("begin is sent before the marker, commit after the local commit", async () => {
  const steps: string[] = [];
  const { client, markers, options } = world(({ operation }) => {
    steps.push(operation);
    return PREPARED;
  });

  const result = await client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: { id: 1 }, key: "1" });
    steps.push("work");
    await markers.transaction(async (db) => {
      await tx.mark(db);
      steps.push("marked");
    });
    steps.push("local commit");
    return 7;
  });

  assert.equal(result, 7);
  assert.deepEqual(steps, ["work", BEGIN, "marked", "local commit", COMMIT]);
  assert.deepEqual([...markers.rows], [["order-1", "commit"]]);
});

test("the begin has the messages, the id, and a key by which it is found again", async () => {
  const { client, markers, options, calls } = world();

  await client.transaction("shop", { ...options, businessKey: "b-1" }, async (tx) => {
    tx.add("orders", { json: { id: 1 } });
    await markers.transaction((db) => tx.mark(db));
  });

  assert.deepEqual(calls[0]?.body, {
    producer_group: "shop",
    transaction_id: "order-1",
    business_key: "b-1",
    messages: [{ topic: "orders", message: { json: { id: 1 } } }],
  });
  assert.equal(calls[0]?.headers.get("idempotency-key"), "begin-order-1");
});

test("a begin within an open local transaction gives up soon, one before it does not", async () => {
  const away = () => refused(503, "overloaded", true);
  for (const early of [false, true]) {
    const { client, clock, markers, options } = world(away);
    let failure: unknown;

    const work = client.transaction("shop", options, async (tx) => {
      tx.add("orders", { json: 1 });
      if (early) await tx.begin();
      await markers.transaction((db) => tx.mark(db));
    });
    const ended = work.catch((error) => (failure = error));

    await clock.advance(6_000);
    assert.equal(failure instanceof ProblemError, !early);
    await clock.advance(60_000);
    await ended;
    assert.ok(failure instanceof ProblemError);
  }
});

test("a work that throws before the local commit is rolled back", async () => {
  const { client, markers, options, operations } = world();

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction(async (db) => {
      await tx.mark(db);
      throw new Error("out of stock");
    });
  });

  await assert.rejects(work, /out of stock/);
  assert.deepEqual(operations(), [BEGIN, ROLLBACK]);
  assert.deepEqual([...markers.rows], [["order-1", "rollback"]]);
});

test("a work that throws after the local commit is committed", async () => {
  const { client, markers, options, operations } = world();

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db));
    throw new Error("the answer to COMMIT was lost");
  });

  await assert.rejects(work, /was lost/);
  assert.deepEqual(operations(), [BEGIN, COMMIT]);
});

test("where the database cannot say what became of the work, nothing is sent", async () => {
  const { client, markers, options, operations } = world();

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db));
    markers.isAway = true;
    throw new Error("the answer to COMMIT was lost");
  });

  await assert.rejects(work, /was lost/);
  assert.deepEqual(operations(), [BEGIN]);
});

test("a database that takes too long to say it leaves the outcome to a check", async () => {
  const { client, clock, markers, options, operations } = world();
  const slow = {
    ...options,
    markers: Object.assign(markers, { outcome: () => new Promise(() => 0) }),
  };

  const work = client.transaction("shop", slow as typeof options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db));
  });
  const failed = assert.rejects(work, CommitPending);
  await clock.advance(5_000);

  await failed;
  assert.deepEqual(operations(), [BEGIN]);
});

test("a work that returns although its transaction rolled back is not published", async () => {
  const { client, markers, options, operations } = world();

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await tx.mark(new Map()); // a transaction that never commits
  });

  await assert.rejects(work, NotCommitted);
  assert.deepEqual(operations(), [BEGIN, ROLLBACK]);
  assert.deepEqual([...markers.rows], [["order-1", "rollback"]]);
});

test("a mark that failed and was caught does not publish", async () => {
  const { client, markers, options, operations } = world();
  markers.rows.set("order-1", "rollback");

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db)).catch(() => undefined);
  });

  await assert.rejects(work, NotCommitted);
  assert.deepEqual(operations(), [BEGIN, ROLLBACK]);
});

test("a mark that is not awaited is said to be, and rejects nowhere else", async () => {
  let answer = (_: unknown): void => undefined;
  const begun = new Promise((resolve) => (answer = resolve));
  const { client, options, operations } = world(({ operation }) =>
    operation === BEGIN ? begun : PREPARED,
  );
  const local = new Map<string, Outcome>();

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    void tx.mark(local);
  });

  await assert.rejects(work, (error: unknown) => {
    assert.ok(error instanceof NotMarked);
    assert.match(error.message, /order-1 .* tx\.mark was not awaited/);
    return true;
  });
  answer(PREPARED);
  await settled();
  assert.equal(local.size, 0);
  assert.deepEqual(operations(), [BEGIN, ROLLBACK]);
});

test("a mark that is not awaited and fails is the cause of what is thrown", async () => {
  const { client, markers, options } = world();
  markers.rows.set("order-1", "rollback");

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    void tx.mark(new Map());
    await settled();
  });

  await assert.rejects(work, (error: unknown) => {
    assert.ok(error instanceof NotCommitted);
    assert.ok(error.cause instanceof Fenced);
    return true;
  });
});

for (const begins of [false, true]) {
  const begun = begins ? "after its begin" : "before its begin";
  test(`a work that returns without a mark ${begun} publishes nothing`, async () => {
    const { client, markers, options, operations } = world();

    const work = client.transaction("shop", options, async (tx) => {
      tx.add("orders", { json: 1 });
      const local = markers.transaction(async (db) => {
        if (begins) await tx.begin();
        if (db.size === 0) throw new Error("UNIQUE constraint failed: shop_orders.order_id");
        await tx.mark(db);
      });
      await local.catch(() => undefined);
    });

    await assert.rejects(work, NotMarked);
    assert.deepEqual(operations(), begins ? [BEGIN, ROLLBACK] : []);
    assert.deepEqual([...markers.rows], begins ? [["order-1", "rollback"]] : []);
  });
}

for (const [state, outcome] of [
  ["committed", "commit"],
  ["rolled_back", "rollback"],
] as const) {
  test(`the id of a transaction that is ${state} says so when it is used again`, async () => {
    const { client, markers, options } = world(() => ({ ...PREPARED, state }));
    markers.isAway = true;

    const work = client.transaction("shop", options, async (tx) => {
      tx.add("orders", { json: 1 });
      await markers.transaction((db) => tx.mark(db));
    });

    await assert.rejects(work, { name: "Fenced", outcome });
  });
}

for (const [status, code] of [
  [422, "idempotency_key_reused"],
  [409, "transaction_exists"],
] as const) {
  test(`an id of other messages (${code}) is named with its state, and left alone`, async () => {
    const known = { context: { transaction_id: "order-1", state: "prepared" } };
    const { client, markers, options, operations } = world(() =>
      respond(status, { ...problem(status, code), ...known }),
    );

    const work = client.transaction("shop", options, async (tx) => {
      tx.add("orders", { json: 2 });
      await markers.transaction((db) => tx.mark(db));
    });

    await assert.rejects(work, (error: unknown) => {
      assert.ok(error instanceof IdTaken);
      assert.equal(error.state, "prepared");
      assert.match(error.message, /^transaction order-1 exists with other .* and is prepared;/);
      assert.equal((error.cause as ProblemError).code, code);
      return true;
    });
    assert.deepEqual(operations(), [BEGIN]);
    assert.equal(markers.rows.size, 0);
  });
}

for (const [state, advice] of [
  ["prepared", /is prepared; repeat it with the same messages and fields, or use another id$/],
  ["committed", /is committed; its work is done, so do not repeat that under another id$/],
  ["rolled_back", /is rolled back; its id is spent, so use another$/],
  [undefined, /is being begun; repeat it with the same messages and fields, or use another id$/],
] as const) {
  test(`what to do with an id that is taken is said by its state, ${state}`, () => {
    assert.match(new IdTaken("order-1", state).message, advice);
  });
}

test("a begin that is refused stops the work, and nothing else is sent", async () => {
  const { client, markers, options, operations } = world(() => refused(404, "topic_not_found"));

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db));
  });

  await assert.rejects(work, ProblemError);
  assert.deepEqual(operations(), [BEGIN]);
  assert.equal(markers.rows.size, 0);
});

test("a begin without an answer is rolled back, as it may have arrived", async () => {
  const { client, clock, markers, options, operations } = world(({ operation }) =>
    operation === BEGIN ? BROKEN : PREPARED,
  );

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db));
  });
  const failed = assert.rejects(work, /no response from POST/);
  await clock.advance(60_000);

  await failed;
  assert.equal(operations().at(-1), ROLLBACK);
  assert.ok(!operations().includes(COMMIT));
});

test("a fence says who rolled back, if the service knows, and that the id is spent", async () => {
  const { client, markers, options } = world(({ operation }) =>
    operation === ROLLBACK ? { replayed: true, resolved_by: "operator" } : PREPARED,
  );
  markers.rows.set("order-1", "rollback");

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db));
  });

  await assert.rejects(work, {
    name: "Fenced",
    outcome: "rollback",
    resolvedBy: "operator",
    message:
      "order-1 was rolled back by an operator, so its id is spent: roll the local transaction " +
      "back, and try again under another id (outcome: rollback)",
  });
});

test("a transaction that is decided already is not marked", async () => {
  const decided = { ...PREPARED, state: "rolled_back" };
  const { client, markers, options } = world(() => decided);

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db));
  });

  await assert.rejects(work, { name: "Fenced", outcome: "rollback" });
  assert.deepEqual([...markers.rows], [["order-1", "rollback"]]);
});

test("a run that finds the marker of an earlier one commits what that one did", async () => {
  const { client, markers, options, operations } = world();
  markers.rows.set("order-1", "commit");

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db));
  });

  await assert.rejects(work, (error: unknown) => {
    assert.ok(error instanceof Fenced);
    assert.equal(error.outcome, "commit");
    for (const text of [error.message, error.stack ?? ""]) {
      assert.match(text, /order-1 was committed by an earlier call .* do not repeat it/);
      assert.doesNotMatch(text, /another id/);
    }
    return true;
  });
  assert.deepEqual(operations(), [BEGIN, COMMIT]);
});

test("a commit without an answer is pending, not failed", async () => {
  const { client, clock, markers, options } = world(({ operation }) =>
    operation === COMMIT ? BROKEN : PREPARED,
  );

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db));
  });
  const failed = assert.rejects(work, (error: unknown) => {
    assert.ok(error instanceof CommitPending);
    assert.equal(error.transactionId, "order-1");
    return true;
  });
  await clock.advance(60_000);

  await failed;
  assert.deepEqual([...markers.rows], [["order-1", "commit"]]);
});

test("a commit that is refused is thrown as the problem that it is", async () => {
  const { client, markers, options } = world(({ operation }) =>
    operation === COMMIT ? refused(409, "transaction_already_resolved") : PREPARED,
  );

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db));
  });

  await assert.rejects(work, { code: "transaction_already_resolved" });
});

for (const [name, answer, error] of [
  ["without a key", () => refused(401, "unauthenticated"), CommitPending],
  ["with an internal error", () => refused(500, "internal_error"), CommitPending],
  ["of a transaction that is gone", () => refused(410, "transaction_expired"), ProblemError],
] as const) {
  test(`a commit ${name} is a ${error.name}`, async () => {
    const { client, markers, options } = world(({ operation }) =>
      operation === COMMIT ? answer() : PREPARED,
    );

    const work = client.transaction("shop", options, async (tx) => {
      tx.add("orders", { json: 1 });
      await markers.transaction((db) => tx.mark(db));
    });

    await assert.rejects(work, error);
  });
}

test("a begin whose outcome the service does not know is rolled back", async () => {
  const { client, markers, options, operations } = world(({ operation }) =>
    operation === BEGIN ? refused(500, "internal_error") : PREPARED,
  );

  const work = client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    await markers.transaction((db) => tx.mark(db));
  });

  await assert.rejects(work, { code: "internal_error" });
  assert.deepEqual(operations(), [BEGIN, ROLLBACK]);
});

test("a local transaction that is tried again begins once", async () => {
  const { client, markers, options, operations } = world();

  await client.transaction("shop", options, async (tx) => {
    tx.add("orders", { json: 1 });
    const conflict = markers.transaction(async (db) => {
      await tx.mark(db);
      throw new Error("serialization failure");
    });
    await assert.rejects(conflict);
    await markers.transaction((db) => tx.mark(db));
  });

  assert.deepEqual(operations(), [BEGIN, COMMIT]);
});

test("without a marker, begin and commit are sent at the end, if at all", async () => {
  const { client, operations } = world();

  await client.transaction("shop", { id: "order-1" }, async (tx) => tx.add("orders", { json: 1 }));
  const failing = client.transaction("shop", { id: "order-1" }, async (tx) => {
    tx.add("orders", { json: 1 });
    throw new Error("out of stock");
  });

  await assert.rejects(failing, /out of stock/);
  assert.deepEqual(operations(), [BEGIN, COMMIT]);
});

test("an earlier begin for a marker of the caller's own is left to a check", async () => {
  const { client, operations } = world();

  const work = client.transaction("shop", { id: "order-1" }, async (tx) => {
    tx.add("orders", { json: 1 });
    await tx.begin();
    throw new Error("the answer to COMMIT was lost");
  });

  await assert.rejects(work, /was lost/);
  assert.deepEqual(operations(), [BEGIN]);
});

test("a transaction without messages sends nothing", async () => {
  const { client, markers, options, operations } = world();

  await client.transaction("shop", options, async (tx) => {
    await markers.transaction((db) => tx.mark(db));
  });

  assert.deepEqual(operations(), []);
  assert.equal(markers.rows.size, 0);
});

test("a message that is no JSON cannot be added", async () => {
  const { client, options, operations } = world();

  const work = client.transaction("shop", options, async (tx) => {
    assert.throws(() => tx.add("orders", { json: { amount: 1n } }), TypeError);
    assert.ok(tx.isEmpty);
    throw new Error("no order");
  });

  await assert.rejects(work, /no order/);
  assert.deepEqual(operations(), []);
});

test("a message cannot be added after the begin", async () => {
  const { client } = world();

  const work = client.transaction("shop", { id: "order-1" }, async (tx) => {
    tx.add("orders", { json: 1 });
    await tx.begin();
    tx.add("orders", { json: 2 });
  });

  await assert.rejects(work, /add all messages before begin/);
});

test("markers whose statements run at once have markSync only", async () => {
  const { client, markers } = world();
  const sync: SyncMarkerStore<Map<string, Outcome>> = {
    markSync: (db, id) => void db.set(id, "commit"),
    outcome: markers.outcome,
    create: markers.create,
    prune: markers.prune,
  };

  const work = client.transaction("shop", { id: "order-1", markers: sync }, async (tx) => {
    tx.add("orders", { json: 1 });
    // @ts-expect-error: it does not exist
    await tx.mark(markers.rows);
  });

  await assert.rejects(work, /markSync only/);
});
