// Consumer groups: how far each is, and what it could not handle.

import { path } from "../api.js";
import {
  commands,
  count,
  duration,
  el,
  facts,
  link,
  next,
  section,
  table,
  tiles,
  when,
} from "../view.js";

const FURTHEST = 10; // groups of the table of those that are behind

export async function list({ reader, query }) {
  // One request for the figures of all groups, whatever their number of queues.
  const figures = reader.text("/metrics").then(figuresOf);
  const groups = reader.get("/v1/groups", { page_size: 100, ...query });
  const parts = await Promise.all([
    section("Most messages ready", () => furthest(figures, groups)),
    section("All, by name", () => byName(groups, query, figures)),
  ]);
  return { parts: [el("h1", {}, "Consumer groups"), ...parts], isLive: true };
}

async function furthest(figures, groups) {
  const known = await figures;
  // A replica has metrics, but none of groups: it is refused here, as every read of groups is.
  if (!known.size) await groups;
  const behind = [...known]
    .filter(([, figure]) => figure.messages_ready)
    .sort(([, one], [, other]) => other.messages_ready - one.messages_ready)
    .slice(0, FURTHEST);
  return table(
    [GROUP, ...FIGURES],
    behind.map(([group, figure]) => ({ group, ...figure })),
    "No group has a message to receive.",
  );
}

async function byName(groups, query, figures) {
  const { items, next_page_token } = await groups;
  const known = await figures.catch(() => new Map());
  return [
    table(
      [GROUP, ["Topics", (one) => one.topics.map(({ topic }) => topic).join(", ")], ...FIGURES],
      items.map((one) => ({ ...one, ...known.get(one.group) })),
      "There is no consumer group yet.",
    ),
    next("groups", [], query, next_page_token),
  ];
}

const GROUP = ["Group", (one) => link("groups", [one.group], one.group)];
const FIGURES = [
  ["Ready", (one) => count(one.messages_ready) ?? "", "number"],
  ["Leased", (one) => count(one.messages_leased) ?? "", "number"],
  ["Waiting for a retry", (one) => count(one.messages_waiting) ?? "", "number"],
  ["Oldest ready", (one) => duration(one.oldest_ready_age_ms) ?? "", "number"],
  ["Dead letters", (one) => count(one.dead_letters) ?? "", "number"],
];

/** The figures of each group that has metrics, by its name, which may be `__proto__`. */
function figuresOf(metrics) {
  const figures = new Map();
  for (const [, name, group, value] of metrics.matchAll(
    /^escrowmq_group_(\w+)\{group="([^"]+)"\} (\S+)$/gm,
  )) {
    if (!figures.has(group)) figures.set(group, {});
    figures.get(group)[name] = Number(value);
  }
  for (const figure of figures.values()) {
    const seconds = figure.oldest_ready_age_seconds;
    if (seconds !== undefined && figure.messages_ready) figure.oldest_ready_age_ms = 1000 * seconds;
  }
  return figures;
}

export async function show({ reader, names: [group], query }) {
  const one = await reader.get(path`/v1/groups/${group}`);
  const parts = await Promise.all([
    section("Lag", () => lag(reader, group)),
    section("Leased messages", () => leases(reader, group)),
    section("Members", () => members(reader, group)),
    section("Dead letters", () => deadLetters(reader, group, query)),
  ]);
  return {
    parts: [
      el("h1", {}, group),
      facts({
        Topics: el(
          "span",
          {},
          one.topics
            .map(({ topic, filter }) => [
              link("topics", [topic], topic),
              filter.expression === "*" ? " " : ` (${filter.kind} ${filter.expression}) `,
            ])
            .flat(),
        ),
        Lease: duration(one.lease_ms),
        "Most attempts": count(one.max_attempts),
        "Push to": one.push?.url,
        "Push is off since": when(one.push?.disabled_at),
        Ordered: one.ordered ? "yes" : "no",
        Created: when(one.created_at),
      }),
      ...parts,
    ],
    isLive: !query.page_token,
  };
}

async function lag(reader, group) {
  const found = await reader.get(path`/v1/groups/${group}/lag`);
  const busy = found.queues.filter(
    (one) =>
      one.messages_ready +
      one.messages_leased +
      one.messages_waiting +
      one.messages_skipped +
      one.messages_damaged,
  );
  return [
    tiles([
      [count(found.messages_ready), "ready"],
      [count(found.messages_leased), "leased"],
      [count(found.messages_waiting), "waiting for a retry"],
      [count(found.dead_letters), "dead letters", found.dead_letters ? "bad" : undefined],
      [count(found.messages_skipped), "skipped", found.messages_skipped ? "warn" : undefined],
      [count(found.messages_damaged), "damaged", found.messages_damaged ? "bad" : undefined],
      [duration(found.oldest_ready_age_ms) ?? "–", "the oldest that is ready"],
    ]),
    table(
      [
        ["Topic", (one) => link("topics", [one.topic], one.topic)],
        [
          "Queue",
          (one) =>
            link("topics", [one.topic, one.queue_id], one.queue_id, {
              offset: one.offset,
            }),
          "number",
        ],
        ["Offset", (one) => count(one.offset), "number"],
        ["Next offset", (one) => count(one.max_offset), "number"],
        ["Ready", (one) => count(one.messages_ready), "number"],
        ["Leased", (one) => count(one.messages_leased), "number"],
        ["Waiting", (one) => count(one.messages_waiting), "number"],
        ["Skipped", (one) => count(one.messages_skipped), "number"],
        ["Damaged", (one) => count(one.messages_damaged), "number"],
      ],
      busy,
      "The group has handled every message.",
    ),
  ];
}

async function leases(reader, group) {
  const { items, next_page_token } = await reader.get(path`/v1/groups/${group}/leases`, {
    page_size: 20,
  });
  return [
    table(
      [
        ["Message", (one) => one.message_id && link("messages", [one.message_id], one.message_id)],
        ["Topic", (one) => one.topic],
        ["Key", (one) => one.key ?? ""],
        ["Attempt", (one) => count(one.attempt), "number"],
        ["Lease ends", (one) => when(one.lease_expires_at)],
      ],
      items,
    ),
    next_page_token && el("p", { class: "faint" }, "These are the first 20."),
  ];
}

async function members(reader, group) {
  const { items, next_page_token } = await reader.get(path`/v1/groups/${group}/members`, {
    page_size: 20,
  });
  return [
    table(
      [
        ["Member", (one) => one.client_id ?? one.member_id],
        ["Joined", (one) => when(one.joined_at)],
        ["Last heartbeat", (one) => when(one.last_heartbeat_at)],
        [
          "Queues",
          (one) => one.assignment.map((each) => `${each.topic} ${each.queue_id}`).join(", "),
        ],
        ["Lag", (one) => count(one.lag) ?? "", "number"],
      ],
      items,
      "None. Consumers that receive under leases are not members.",
    ),
    next_page_token && el("p", { class: "faint" }, "These are the first 20."),
  ];
}

async function deadLetters(reader, group, query) {
  const target = path`/v1/groups/${group}/dead-letters`;
  const { items, next_page_token } = await reader.get(target, {
    page_size: 20,
    payload: "omit",
    ...query,
  });
  return [
    table(
      [
        ["Message", ({ message }) => link("messages", [message.message_id], message.message_id)],
        ["Topic", (one) => link("topics", [one.origin_topic], one.origin_topic)],
        ["Key", ({ message }) => message.key ?? ""],
        ["Attempts", (one) => count(one.attempts), "number"],
        ["Reason", (one) => one.reason + (one.damaged ? " (damaged)" : "")],
        ["Since", (one) => when(one.dead_lettered_at)],
      ],
      items,
    ),
    next("groups", [group], query, next_page_token),
    ...(items.length
      ? commands([
          "Count what would be delivered again, without dry_run deliver it:",
          `${target}/redrive`,
          { body: { select: "all", dry_run: true } },
        ])
      : []),
  ];
}
