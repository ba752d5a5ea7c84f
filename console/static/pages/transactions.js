// Transactions: those that wait for a decision, and what became of one.

import { path } from "../api.js";
import {
  commands,
  count,
  duration,
  el,
  facts,
  filters,
  input,
  link,
  next,
  section,
  select,
  state,
  table,
  when,
} from "../view.js";

const STATES = [
  ["prepared,held", "undecided"],
  ["held", "held"],
  ["committed", "committed"],
  ["rolled_back", "rolled back"],
  ["", "all"],
];
const AGES = [
  ["", "any"],
  ["60000", "1 min"],
  ["300000", "5 min"],
  ["3600000", "1 h"],
  ["86400000", "1 d"],
];

export async function list({ reader, query, go }) {
  const asked = { state: "prepared,held", ...query };
  const found = await section("", () => matching(reader, asked));
  return {
    parts: [
      el("h1", {}, "Transactions"),
      filters(
        ({ transaction_id, ...rest }) => {
          if (transaction_id)
            location.hash = `#/transactions/${encodeURIComponent(transaction_id)}`;
          // An empty state is a choice here, so it has to stay in the address.
          else location.hash = `#/transactions?${new URLSearchParams(rest)}`;
        },
        select("state", "State", STATES, asked.state),
        input("producer_group", "Producer group", asked.producer_group),
        input("business_key", "Business key", asked.business_key),
        select("older_than_ms", "Older than", AGES, asked.older_than_ms ?? ""),
        input("transaction_id", "or its id", ""),
      ),
      found,
    ],
    isLive: !query.page_token,
  };
}

async function matching(reader, asked) {
  const { items, next_page_token } = await reader.get("/v1/transactions", {
    ...asked,
    page_size: 50,
  });
  return [
    table(
      [
        ["Transaction", (one) => link("transactions", [one.transaction_id], one.transaction_id)],
        ["State", (one) => state(one.state)],
        ["Producer group", (one) => one.producer_group],
        ["Business key", (one) => one.business_key ?? ""],
        ["Begun", (one) => when(one.prepared_at)],
        ["Age", (one) => duration(one.age_ms), "number"],
        ["Checks answered unknown", (one) => count(one.answers), "number"],
        ["Held or decided by", (one) => plain(one.hold_reason ?? one.resolved_by ?? "")],
      ],
      items,
      "No transaction matches.",
    ),
    next("transactions", [], asked, next_page_token),
  ];
}

export async function show({ reader, names: [id] }) {
  const one = await reader.get(path`/v1/transactions/${id}`);
  const isOpen = one.state === "prepared" || one.state === "held";
  const parts = await Promise.all([
    section("In words", () => explain(reader, id)),
    section("Messages", () => messages(one)),
    section("History", () => history(reader, id)),
  ]);
  if (isOpen) parts.push(await section("Decide it", () => decide(reader, one)));
  return {
    parts: [
      el("h1", {}, id),
      facts({
        State: state(one.state),
        "Producer group": one.producer_group,
        "Business key": one.business_key,
        Begun: when(one.prepared_at),
        "Next check": one.state === "prepared" ? when(one.next_check_at) : undefined,
        "Now being checked": one.checking ? "yes" : undefined,
        "Decided after its limit": one.late ? "yes" : undefined,
        "Last failure of a check": one.last_failure,
        "Held because": one.hold_reason && plain(one.hold_reason),
        Decided: when(one.resolved_at),
        "Decided by": one.resolved_by,
        Reason: one.reason,
      }),
      ...parts,
    ],
    isLive: isOpen,
  };
}

async function explain(reader, id) {
  const {
    summary,
    facts: known,
    next: after,
  } = await reader.get(path`/v1/transactions/${id}/explain`);
  return [
    el("p", {}, summary),
    el(
      "ul",
      {},
      known.map((fact) => el("li", {}, fact)),
    ),
    after && el("p", {}, after),
  ];
}

function messages(one) {
  return table(
    [
      ["Message", (each) => link("messages", [each.message_id], each.message_id)],
      ["Topic", (each) => link("topics", [each.topic], each.topic)],
      ["Queue", (each) => count(each.queue_id) ?? "", "number"],
      ["Offset", (each) => count(each.queue_offset) ?? "", "number"],
    ],
    one.messages ?? [],
  );
}

async function history(reader, id) {
  const { items } = await reader.get(path`/v1/transactions/${id}/history`);
  return table(
    [
      ["At", (each) => when(each.at)],
      ["What happened", (each) => each.event.replaceAll("_", " ")],
      ["Details", details],
      ["Log offset", (each) => count(each.log_offset) ?? "", "number"],
    ],
    items,
  );
}

function details(event) {
  const evidence = Object.entries(event.evidence ?? {}).map(([name, value]) => `${name}: ${value}`);
  const latency =
    event.latency_ms === undefined ? undefined : `after ${duration(event.latency_ms)}`;
  const attempt = event.attempt && `attempt ${event.attempt}`;
  return [
    attempt,
    event.via,
    event.decision,
    latency,
    event.why,
    event.detail,
    event.hold_reason && plain(event.hold_reason),
    event.by && `by ${event.by}`,
    event.reason,
    ...evidence,
  ]
    .filter(Boolean)
    .join(", ");
}

async function decide(reader, one) {
  const of = (verb) => path`/v1/transactions/${one.transaction_id}/` + verb;
  const group = await reader
    .get(path`/v1/producer-groups/${one.producer_group}`)
    .catch(() => undefined);
  const given = [];
  if (group?.check_mode === "webhook") {
    given.push([
      "What would its producer answer to a check?",
      of("check"),
      { body: { dry_run: true } },
    ]);
  }
  given.push([
    "Commit or roll back in place of the producer; write which, and why:",
    of("resolve"),
    { body: { decision: "commit or rollback", reason: "" } },
  ]);
  if (one.state === "held") given.push(["Check it again:", of("resume"), { method: "POST" }]);
  return commands(...given);
}

/** A word of the API as words. */
function plain(word) {
  return word.replaceAll("_", " ");
}
