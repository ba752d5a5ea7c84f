// Messages: found by key, and what became of one.

import { path } from "../api.js";
import {
  count,
  el,
  facts,
  filters,
  input,
  link,
  next,
  payload,
  section,
  state,
  table,
  when,
} from "../view.js";

export async function find({ reader, query, go }) {
  const { topic, key } = query;
  const parts = [
    el("h1", {}, "Messages"),
    filters(
      ({ message_id, ...rest }) => {
        if (message_id) location.hash = `#/messages/${encodeURIComponent(message_id)}`;
        else go(rest);
      },
      input("topic", "Topic", topic),
      input("key", "and key", key),
      input("message_id", "or message id", ""),
    ),
  ];
  if (topic && key) parts.push(await section("", () => found(reader, query)));
  else if (topic || key) parts.push(el("p", {}, "Give a topic and a key, or a message id."));
  return { parts };
}

async function found(reader, query) {
  const { items, next_page_token } = await reader.get("/v1/messages", {
    payload: "omit",
    page_size: 50,
    ...query,
  });
  return [
    table(
      [
        ["Message", (one) => link("messages", [one.message_id], one.message_id)],
        ["Queue", (one) => count(one.queue_id), "number"],
        ["Offset", (one) => count(one.queue_offset), "number"],
        ["Stored", (one) => when(one.stored_at)],
        ["Tag", (one) => one.tag ?? ""],
        ["Transaction", transaction],
      ],
      items,
      "No message has this key.",
    ),
    next("messages", [], query, next_page_token),
  ];
}

function transaction({ transaction_id: id }) {
  return id ? link("transactions", [id], id) : "";
}

export async function show({ reader, names: [id] }) {
  const one = await reader.get(path`/v1/messages/${id}`);
  const properties = Object.entries(one.properties ?? {});
  const parts = await Promise.all([
    section("Body", () => payload(one)),
    section("Properties", () =>
      table(
        [
          ["Name", ([name]) => name],
          ["Value", ([, value]) => value],
        ],
        properties,
      ),
    ),
    section("What became of it", () => trace(reader, id)),
  ]);
  const place =
    one.queue_id === undefined
      ? "not in a queue yet"
      : link(
          "topics",
          [one.topic, one.queue_id],
          `queue ${one.queue_id}, offset ${one.queue_offset}`,
          {
            offset: one.queue_offset,
          },
        );
  return {
    parts: [
      el("h1", {}, id),
      facts({
        Topic: link("topics", [one.topic], one.topic),
        Place: place,
        "Deliver at": when(one.deliver_at),
        Keys: one.keys?.join(", ") ?? one.key,
        Tag: one.tag,
        "Ordering key": one.ordering_key,
        "Content type": one.content_type,
        Transaction:
          one.transaction_id && link("transactions", [one.transaction_id], one.transaction_id),
        Born: when(one.born_at),
        Stored: when(one.stored_at),
      }),
      ...parts,
    ],
  };
}

async function trace(reader, id) {
  const { items, groups, told_until: end } = await reader.get(path`/v1/messages/${id}/trace`);
  return [
    table(
      [
        ["Consumer group", (one) => link("groups", [one.group], one.group)],
        ["Now", (one) => state(one.status)],
        ["Until", (one) => when(one.until) ?? ""],
        ["Filter", (one) => one.filter ?? ""],
      ],
      groups ?? [],
      "No consumer group reads its topic.",
    ),
    table(
      [
        ["At", (one) => when(one.at)],
        ["What happened", (one) => one.event.replaceAll("_", " ")],
        ["Group", (one) => one.group ?? ""],
        ["Attempt", (one) => count(one.attempt) ?? "", "number"],
        ["Worker", (one) => one.worker ?? ""],
        ["Reason", (one) => one.reason ?? ""],
      ],
      items,
    ),
    end && el("p", { class: "faint" }, "Later events were too many to search. Ends at ", when(end)),
  ];
}
