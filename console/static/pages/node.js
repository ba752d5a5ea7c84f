// The store of this node, its disk, and the machines beside it.

import {
  byteRate,
  bytes,
  count,
  duration,
  el,
  facts,
  milliseconds,
  percent,
  rate,
  section,
  table,
  when,
} from "../view.js";

export async function show({ reader }) {
  const parts = await Promise.all([
    section("Log", () => log(reader)),
    section("Disk", () => disk(reader)),
    section("Replicas", () => replicas(reader)),
    section("Nodes", () => nodes(reader)),
    section("Last start", () => recovery(reader)),
  ]);
  return { parts: [el("h1", {}, "Store and disk"), ...parts], isLive: true };
}

async function log(reader) {
  const store = await reader.get("/v1/admin/store");
  return facts({
    Offsets: `${count(store.log.min_offset)} up to ${count(store.log.max_offset)}`,
    "Synced up to": count(store.log.synced_offset),
    Segments: count(store.log.segments),
    "Not yet in a consume queue": bytes(store.dispatch_lag_bytes),
    "A start would read": bytes(store.replay_bytes),
    "Waiting to be written or synced": bytes(store.queued_bytes),
    "Open files": `${count(store.files.open)} of ${count(store.files.limit)}`,
    Connections: `${count(store.connections.open)} of ${count(store.connections.limit)}`,
    "Damage found": count(store.scrub.findings.length + store.scrub.findings_omitted),
  });
}

async function disk(reader) {
  const found = await reader.get("/v1/admin/disk");
  const { device, log: of } = found;
  return [
    ...found.diagnoses.map(({ message, action }) =>
      el("div", { class: "problem" }, el("b", {}, message), el("p", {}, action)),
    ),
    facts({
      Used: percent(found.used_ratio),
      "New messages are refused above": percent(found.refuse_above),
      Growth: byteRate(found.growth_bytes_per_second),
      "Full in": duration(found.full_in_ms),
      Device: device?.name,
      Busy: percent(device?.utilisation),
      "Writes of the device": byteRate(device?.write_bytes_per_second),
      "Syncs of the log": rate(of?.syncs_per_second),
      "A sync takes": milliseconds(of?.sync_ms),
      "Reads that had to wait for the disk": rate(found.reads?.cold_reads_per_second),
    }),
  ];
}

async function replicas(reader) {
  const found = await reader.get("/v1/admin/replicas");
  return [
    el(
      "p",
      { class: found.lacks_copies ? "bad" : undefined },
      found.lacks_copies
        ? `Too few replicas are connected for ${count(found.copies)} copies.`
        : `Copies that a message needs to be safe: ${count(found.copies)}.`,
    ),
    table(
      [
        ["Replica", (one) => one.node],
        ["Address", (one) => one.address],
        ["Behind", (one) => bytes(one.behind_bytes), "number"],
        ["Synced up to", (one) => count(one.synced_offset), "number"],
        ["Last heard of", (one) => `${duration(one.silent_ms)} ago`, "number"],
      ],
      found.items,
      "No replica is connected.",
    ),
    found.alone && el("p", { class: "warn" }, "The service goes on alone: see docs/replicas.md."),
    found.rocketmq_slaves.length > 0 &&
      table(
        [
          ["Slave of RocketMQ", (one) => one.address],
          ["Behind", (one) => bytes(one.behind_bytes), "number"],
          ["Last heard of", (one) => `${duration(one.silent_ms)} ago`, "number"],
        ],
        found.rocketmq_slaves,
      ),
  ];
}

async function nodes(reader) {
  const { items } = await reader.get("/v1/names/nodes");
  return table(
    [
      ["Node", (one) => one.node],
      ["Service", (one) => one.group],
      ["Role", (one) => one.role],
      ["Ready", (one) => (one.ready && !one.away ? "yes" : "no")],
      ["Release", (one) => one.release],
      ["Epoch", (one) => count(one.epoch), "number"],
      ["End of its log", (one) => count(one.end_offset), "number"],
      ["Address", (one) => one.url ?? ""],
    ],
    items,
  );
}

async function recovery(reader) {
  const found = await reader.get("/v1/admin/recovery");
  return facts({
    Started: when(found.started_at),
    "The stop before": found.was_clean ? "in order" : "a crash",
    Took: duration(found.took_ms),
    "Bytes checked": bytes(found.walked_bytes),
    "Records replayed": count(found.replayed_records),
    "Records cut": count(found.cut_records),
  });
}
