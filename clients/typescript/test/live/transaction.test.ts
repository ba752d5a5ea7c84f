import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import {
  CHECK_HORIZON_MS,
  CommitPending,
  Fenced,
  MarkerCommitsAlone,
  type SyncMarkerStore,
} from "../../src/index.js";
import { available, type Database, databases, table } from "./databases.js";
import {
  answerChecks,
  client,
  losing,
  losingAnswersOf,
  newTopic,
  published,
  stateOf,
  unique,
} from "./support.js";

const SOON = { first_after_ms: 10, interval_ms: 10 };

for (const name of available) {
  const open = databases[name] ?? assert.fail(name);
  let database: Database;
  before(async () => {
    database = await open();
  });
  after(() => database.close());

  test(`${name}: messages are published with the local transaction`, async () => {
    const [id, topic] = [unique("order"), await newTopic()];

    await client.transaction("shop", { id, markers: database.markers }, async (tx) => {
      tx.add(topic, { json: { id }, key: id });
      await database.transaction(async (db) => {
        await tx.mark(db);
        assert.deepEqual(await published(topic), []);
      });
    });

    assert.deepEqual(await published(topic), [{ id }]);
    assert.equal(await database.row(id), "commit");
  });

  test(`${name}: a local transaction that rolls back publishes nothing`, async () => {
    const [id, topic] = [unique("order"), await newTopic()];

    const work = client.transaction("shop", { id, markers: database.markers }, async (tx) => {
      tx.add(topic, { json: 1 });
      await database.transaction(async (db) => {
        await tx.mark(db);
        throw new Error("out of stock");
      });
    });

    await assert.rejects(work, /out of stock/);
    assert.equal(await stateOf(id), "rolled_back");
    assert.equal(await database.row(id), "rollback");
  });

  test(`${name}: a marker without a local transaction is refused`, async () => {
    const [id, topic] = [unique("order"), await newTopic()];

    const work = client.transaction("shop", { id, markers: database.markers }, async (tx) => {
      tx.add(topic, { json: 1 });
      await database.alone((db) => tx.mark(db));
    });

    await assert.rejects(work, MarkerCommitsAlone);
    assert.equal(await stateOf(id), "rolled_back");
    assert.equal(await database.row(id), "rollback");
  });

  for (const [kind, losses] of [
    ["that does not arrive", losing],
    ["whose answer is lost", losingAnswersOf],
  ] as const) {
    test(`${name}: a commit ${kind} is pending, and published once`, async () => {
      const [id, topic, group] = [unique("order"), await newTopic(), unique("shop")];
      const options = { id, markers: database.markers, check: SOON };

      const work = losses(/\/commit$/).transaction(group, options, async (tx) => {
        tx.add(topic, { json: 1 });
        await database.transaction((db) => tx.mark(db));
      });
      await assert.rejects(work, CommitPending);
      if (losses === losing) assert.equal(await answerChecks(group, database.markers), 1);

      assert.equal(await stateOf(id), "committed");
      assert.deepEqual(await published(topic), [1]);
    });
  }

  test(`${name}: a run that died before its mark is rolled back by its check`, async () => {
    const [id, topic, group] = [unique("order"), await newTopic(), unique("shop")];
    const messages = [{ topic, message: { json: 1 } }];
    await client.begin({ transaction_id: id, producer_group: group, messages, check: SOON });

    assert.equal(await answerChecks(group, database.markers), 1);

    assert.equal(await stateOf(id), "rolled_back");
    const late = database.transaction((db) => database.markers.mark(db, id));
    await assert.rejects(late, Fenced);
    assert.equal(await database.row(id), "rollback");
  });

  for (const [step, outcome] of [
    ["before begin", undefined],
    ["after begin", "rollback"],
    ["after mark", "rollback"],
    ["after local commit", "commit"],
    ["before commit", "commit"],
    ["after commit", "commit"],
  ] as const) {
    test(`${name}: a program that dies ${step} publishes what its database has`, async (t) => {
      if (!database.waits) return t.skip("this driver leaves its lock behind");
      const [id, topic, group] = [unique("order"), await newTopic(), unique("shop")];

      const args = [
        fileURLToPath(new URL("dies.js", import.meta.url)),
        name,
        step,
        id,
        topic,
        group,
      ];
      const env = { ...process.env, MARKERS: table };
      const { signal, stderr } = spawnSync(process.execPath, args, { env, encoding: "utf8" });
      assert.equal(signal, "SIGKILL", stderr);
      const isOpen = outcome !== undefined && (await stateOf(id)) === "prepared";
      if (isOpen) assert.equal(await answerChecks(group, database.markers), 1);

      assert.equal(await database.row(id), outcome);
      assert.deepEqual(await published(topic), outcome === "commit" ? [id] : []);
    });
  }

  test(`${name}: a run that died after its begin is repeated under the same id`, async () => {
    const [id, topic] = [unique("order"), await newTopic()];
    const options = { id, markers: database.markers };
    const run = (dies: boolean): Promise<void> =>
      client.transaction("shop", options, async (tx) => {
        tx.add(topic, { json: 1 });
        if (dies) {
          await tx.begin();
          await new Promise(() => undefined);
        }
        await database.transaction((db) => tx.mark(db));
      });
    void run(true);

    await run(false);

    assert.deepEqual(await published(topic), [1]);
  });

  test(`${name}: a run with other messages than the one before is refused by its id`, async () => {
    const [id, topic] = [unique("order"), await newTopic()];
    const place = (at: number): Promise<void> =>
      client.transaction("shop", { id, markers: database.markers }, async (tx) => {
        tx.add(topic, { json: { at } });
        await database.transaction((db) => tx.mark(db));
      });
    const body = { producer_group: "shop", transaction_id: id };
    const messages = [{ topic, message: { json: { at: 1 } } }];
    await client.begin({ ...body, messages }, { idempotencyKey: `begin-${id}` });

    await assert.rejects(place(2), { name: "IdTaken", transactionId: id, state: "prepared" });
    await place(1);
    await assert.rejects(place(2), { name: "IdTaken", transactionId: id, state: "committed" });

    assert.deepEqual(await published(topic), [{ at: 1 }]);
  });

  test(`${name}: an outcome is not told before the local transaction has ended`, async () => {
    const id = unique("order");
    const { markers, waits } = database;
    let outcome: Promise<unknown> | undefined;

    await database.transaction(async (db) => {
      await markers.mark(db, id);
      outcome = markers.outcome(id);
      outcome.catch(() => undefined);
      if (!waits) await assert.rejects(outcome, /locked/);
    });

    assert.equal(waits ? await outcome : await markers.outcome(id), "commit");
  });

  test(`${name}: an outcome that is known does not wait for another transaction`, async () => {
    const [known, other] = [unique("known"), unique("other")];
    await database.transaction((db) => database.markers.mark(db, known));
    if (!database.waits) return; // by this driver even a reader finds the database locked

    await database.transaction(async (db) => {
      await database.markers.mark(db, other);
      assert.equal(await database.markers.outcome(known), "commit");
    });
  });

  test(`${name}: of an outcome and a mark at the same time, the first decides`, async () => {
    const ids = Array.from({ length: 20 }, () => unique("race"));

    const results = await Promise.all(
      ids.map(async (id) => {
        const marking = database
          .transaction((db) => database.markers.mark(db, id))
          .then(
            () => "commit",
            (error: unknown) => (error instanceof Fenced ? "rollback" : error),
          );
        const asking = database.markers.outcome(id).catch((error: unknown) => error);
        const [marked, asked] = [await marking, await asking];
        return [marked, asked instanceof Error ? marked : asked, await database.row(id)];
      }),
    );

    // Of SQLite, a mark that finds the database locked fails as it is, without a row.
    for (const [marked, asked, row] of results) {
      if (marked instanceof Error) assert.match(marked.message, /locked|transaction/);
      else assert.deepEqual([marked, asked], [row, row]);
    }
  });

  test(`${name}: old rows are deleted, and none that a check may need`, async () => {
    const [old, young] = [unique("old"), unique("young")];
    await database.insert(old, Date.now() - 2 * CHECK_HORIZON_MS);
    await database.insert(young, Date.now() - CHECK_HORIZON_MS / 2);

    assert.equal(await database.markers.prune(CHECK_HORIZON_MS), 1);
    await assert.rejects(async () => database.markers.prune(1_000), RangeError);

    assert.equal(await database.row(old), undefined);
    assert.equal(await database.row(young), "commit");
    await database.markers.create(); // once more changes nothing
  });
}

test("sqlite: a transaction that does not wait is marked at once, after the begin", async () => {
  if (!available.includes("sqlite")) return;
  const database = await databases["sqlite"]?.();
  assert.ok(database);
  const [id, topic] = [unique("order"), await newTopic()];

  const markers = database.markers as unknown as SyncMarkerStore<any>;
  await client.transaction("shop", { id, markers }, async (tx) => {
    tx.add(topic, { json: 1 });
    await tx.begin();
    await database.transaction(async (db) => tx.markSync(db));
  });
  await database.close();

  assert.deepEqual(await published(topic), [1]);
});
