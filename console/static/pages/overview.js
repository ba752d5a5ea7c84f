// What an operator looks at first.

import {
  bytes,
  count,
  duration,
  el,
  percent,
  problem,
  rate,
  section,
  table,
  tiles,
} from "../view.js";

export async function show({ reader }) {
  const parts = await Promise.all([
    section("Health", () => health(reader)),
    section("Now", () => now(reader)),
    section("Disk", () => disk(reader)),
    section("Background work", () => loops(reader)),
  ]);
  return { parts: [el("h1", {}, "Overview"), ...parts], isLive: true };
}

async function health(reader) {
  try {
    const { checks } = await reader.get("/readyz");
    const failing = Object.entries(checks).filter(([, answer]) => answer !== "ok");
    if (!failing.length) return el("p", { class: "good" }, "Ready: every check passes.");
    return table(
      [
        ["Check", ([name]) => name.replaceAll("_", " ")],
        ["Answer", ([, answer]) => answer],
      ],
      failing,
    );
  } catch (error) {
    if (error.status === undefined) throw error;
    return problem(error);
  }
}

async function now(reader) {
  const store = await reader.get("/v1/admin/store");
  const { rates, pending_transactions, held_transactions, schedules_due_late, queued_bytes } =
    store;
  const damage = store.scrub.findings.length + store.scrub.findings_omitted;
  return tiles([
    [count(pending_transactions - held_transactions), "transactions prepared"],
    [count(held_transactions), "transactions held", held_transactions ? "bad" : undefined],
    [rate(rates.messages_in_per_second), "messages in"],
    [rate(rates.messages_out_per_second), "messages out"],
    [rate(rates.transactions_committed_per_second), "committed"],
    [rate(rates.transactions_rolled_back_per_second), "rolled back"],
    [count(schedules_due_late), "delayed messages late", schedules_due_late ? "warn" : undefined],
    [bytes(queued_bytes), "waiting to be synced"],
    [count(damage), "findings of damage", damage ? "bad" : undefined],
  ]);
}

async function disk(reader) {
  const { used_ratio, writable, full_in_ms, diagnoses } = await reader.get("/v1/admin/disk");
  return [
    tiles([
      [percent(used_ratio), "used", writable ? undefined : "bad"],
      [writable ? "yes" : "no", "takes new messages", writable ? "good" : "bad"],
      [duration(full_in_ms) ?? "–", "until it is full, at this rate"],
    ]),
    ...diagnoses.map(({ message, action }) =>
      el("div", { class: "problem" }, el("b", {}, message), el("p", {}, action)),
    ),
  ];
}

async function loops(reader) {
  const { items } = await reader.get("/v1/admin/loops");
  const troubled = items.filter((one) => one.failures || one.set_aside || one.waits_for);
  return table(
    [
      ["Loop", (one) => one.loop.replaceAll("_", " ")],
      ["Failures", (one) => count(one.failures), "number"],
      ["Skipped items", (one) => count(one.set_aside), "number"],
      ["Lag", (one) => duration(one.lag_ms), "number"],
      ["Last error", (one) => one.last_error ?? one.waits_for ?? ""],
    ],
    troubled,
    `${items.length} loops run without an error.`,
  );
}
