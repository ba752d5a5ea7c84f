// Topics, their queues, and the messages in a queue.

import { path } from "../api.js";
import {
  bytes,
  count,
  duration,
  el,
  facts,
  filters,
  input,
  link,
  next,
  payload,
  section,
  table,
  when,
} from "../view.js";

const PAGE = 20; // messages of a queue

export async function list({ reader, query }) {
  const { items, next_page_token } = await reader.get("/v1/topics", {
    page_size: 100,
    ...query,
  });
  return {
    parts: [
      el("h1", {}, "Topics"),
      table(
        [
          ["Topic", (one) => link("topics", [one.topic], one.topic)],
          ["Queues", (one) => count(one.queues), "number"],
          ["Message types", (one) => one.message_types.join(", ")],
          ["Retention", (one) => duration(one.retention_ms), "number"],
          ["Created", (one) => when(one.created_at)],
        ],
        items,
        "There is no topic yet.",
      ),
      next("topics", [], query, next_page_token),
    ],
  };
}

export async function show({ reader, names: [topic] }) {
  const one = await reader.get(path`/v1/topics/${topic}`);
  const parts = await Promise.all([
    section("Size", () => size(reader, topic)),
    section("Queues", () => queues(reader, topic)),
  ]);
  return {
    parts: [
      el("h1", {}, topic),
      facts({
        "Message types": one.message_types.join(", "),
        Retention: duration(one.retention_ms),
        "Largest message": bytes(one.max_message_bytes),
        "Longest delay": duration(one.max_delay_ms),
        Created: when(one.created_at),
      }),
      ...parts,
    ],
    isLive: true,
  };
}

async function size(reader, topic) {
  const stats = await reader.get(path`/v1/topics/${topic}/stats`);
  const groups = stats.groups.map((group) => [link("groups", [group], group), " "]).flat();
  return facts({
    "Messages in its queues": count(stats.messages),
    "Messages ever": count(stats.messages_ever),
    "Consumer groups": groups.length ? el("span", {}, groups) : "none",
  });
}

async function queues(reader, topic) {
  const { items } = await reader.get(path`/v1/topics/${topic}/queues`);
  return table(
    [
      ["Queue", (one) => link("topics", [topic, one.queue_id], one.queue_id)],
      ["First offset", (one) => count(one.min_offset), "number"],
      ["Next offset", (one) => count(one.max_offset), "number"],
      ["Messages", (one) => count(one.max_offset - one.min_offset), "number"],
      [
        "",
        (one) =>
          link("topics", [topic, one.queue_id], "newest", {
            offset: newest(one),
          }),
      ],
    ],
    items,
  );
}

/** Where the newest page of a queue begins. */
function newest({ min_offset, max_offset }) {
  return Math.max(min_offset, max_offset - PAGE);
}

export async function queue({ reader, names: [topic, number], query, go }) {
  const { items } = await reader.get(path`/v1/topics/${topic}/queues`);
  const bounds = items.find((one) => String(one.queue_id) === number);
  if (!bounds) throw new Error(`Topic ${topic} has no queue ${number}.`);
  const offset = query.offset ?? newest(bounds);
  return {
    parts: [
      el("h1", {}, `${topic}, queue ${number}`),
      el(
        "p",
        { class: "faint" },
        `Offsets ${count(bounds.min_offset)} up to ${count(bounds.max_offset)}. `,
        "Looking at messages here changes nothing for consumers.",
      ),
      filters(go, input("offset", "From offset", offset, { type: "number", min: 0 })),
      await section("", () => messagesFrom(reader, topic, number, Number(offset))),
    ],
  };
}

async function messagesFrom(reader, topic, number, offset) {
  const pull = (more) =>
    reader.get(path`/v1/topics/${topic}/queues/${number}/messages`, {
      offset,
      max_messages: PAGE,
      ...more,
    });
  let found = await pull({});
  // Bodies so large that an answer does not have the page's messages are left out.
  const isLarge = found.messages.length < PAGE && found.next_offset < found.max_offset;
  if (isLarge) found = await pull({ payload: "omit", max_bytes: 16_777_216 });
  const to = (at, text) => link("topics", [topic, number], text, { offset: at });
  return [
    table(
      [
        ["Offset", (one) => count(one.queue_offset), "number"],
        ["Message", (one) => link("messages", [one.message_id], one.message_id)],
        ["Stored", (one) => when(one.stored_at)],
        ["Key", (one) => one.key ?? ""],
        ["Tag", (one) => one.tag ?? ""],
        ["Body", isLarge ? () => "large" : start],
      ],
      found.messages,
      "No message from here on.",
    ),
    el(
      "p",
      {},
      offset > found.min_offset && to(Math.max(found.min_offset, offset - PAGE), "Older"),
      " ",
      found.next_offset < found.max_offset && to(found.next_offset, "Newer"),
    ),
  ];
}

/** What a body begins with. */
function start(message) {
  return payload({ ...message, payload: (message.payload ?? "").slice(0, 300) });
}
