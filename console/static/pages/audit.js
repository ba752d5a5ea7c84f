// Audit reports: what became of every transaction.

import { path } from "../api.js";
import {
  bytes,
  commands,
  count,
  el,
  facts,
  link,
  next,
  section,
  state,
  table,
  when,
} from "../view.js";

export async function list({ reader, query }) {
  const { items, next_page_token } = await reader.get("/v1/audit/reports", {
    page_size: 50,
    ...query,
  });
  return {
    parts: [
      el("h1", {}, "Audit reports"),
      table(
        [
          ["Report", (one) => link("audit", [one.report_id], one.report_id)],
          ["Kind", (one) => one.kind],
          ["State", (one) => state(one.state)],
          ["Created", (one) => when(one.created_at)],
          ["Finished", (one) => when(one.finished_at) ?? ""],
          ["Progress", progress],
          ["Reason", (one) => one.reason ?? ""],
        ],
        items,
        "There is no report yet.",
      ),
      next("audit", [], query, next_page_token),
      await section("Make one", () =>
        commands([
          "A Spark job reads the log and gives every transaction one verdict:",
          "/v1/audit/reports",
          { body: {} },
        ]),
      ),
    ],
    isLive: items.some((one) => one.state === "queued" || one.state === "running"),
  };
}

function progress({ progress: made }) {
  return made ? `${count(made.tasks_done)} of ${count(made.tasks_known)} tasks` : "";
}

export async function show({ reader, names: [id], query }) {
  const one = await reader.get(path`/v1/audit/reports/${id}`);
  const verdicts = Object.entries(one.verdicts ?? {});
  const parts = [
    el("h1", {}, id),
    facts({
      State: state(one.state),
      Created: when(one.created_at),
      Finished: when(one.finished_at),
      Reason: one.reason,
      Progress: progress(one) || undefined,
      "Transactions begun": count(one.begun),
      Balance:
        one.balanced === undefined
          ? undefined
          : one.balanced
            ? el("span", { class: "good" }, "every byte is accounted for")
            : el("span", { class: "bad" }, "the counts do not balance"),
      "Records in the log": count(one.log?.records),
      "Bytes accounted for": bytes(one.log?.accounted_bytes),
    }),
  ];
  if (one.state === "done") {
    parts.push(
      ...(await Promise.all([
        section("Verdicts", () =>
          table(
            [
              ["Verdict", ([verdict]) => verdict.replaceAll("_", " ")],
              ["Transactions", ([, number]) => count(number), "number"],
            ],
            verdicts,
          ),
        ),
        section("Findings", () => findings(reader, id, query)),
        section("As a file", () =>
          commands([
            "The report with plots:",
            `${path`/v1/audit/reports/${id}/download`}?format=html`,
          ]),
        ),
      ])),
    );
  }
  return { parts, isLive: one.state === "queued" || one.state === "running" };
}

async function findings(reader, id, query) {
  const target = path`/v1/audit/reports/${id}/findings`;
  const { items, next_page_token } = await reader.get(target, {
    page_size: 50,
    ...query,
  });
  return [
    table(
      [
        ["Verdict", (one) => one.verdict?.replaceAll("_", " ") ?? one.check ?? ""],
        [
          "Transaction",
          (one) =>
            one.transaction_id
              ? link("transactions", [one.transaction_id], one.transaction_id)
              : "",
        ],
        ["Producer group", (one) => one.producer_group ?? ""],
        ["Records", (one) => count(one.records?.length) ?? "", "number"],
        ["Reason", (one) => one.reason ?? ""],
      ],
      items,
    ),
    next("audit", [id], query, next_page_token),
  ];
}
