// Delayed messages and cron schedules.

import { path } from "../api.js";
import {
  commands,
  el,
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
  ["scheduled", "scheduled"],
  ["paused", "paused"],
  ["set_aside", "skipped after an error"],
  ["delivered", "delivered"],
  ["cancelled", "cancelled"],
];
const PLACE = "SCHEDULE_ID"; // to be replaced in a command
const KINDS = [
  ["", "both"],
  ["message", "delayed messages"],
  ["cron", "cron schedules"],
];

export async function list({ reader, query, go }) {
  const asked = { state: "scheduled", ...query };
  return {
    parts: [
      el("h1", {}, "Schedules"),
      filters(
        go,
        select("state", "State", STATES, asked.state),
        select("kind", "Kind", KINDS, asked.kind ?? ""),
        input("topic", "Topic", asked.topic),
      ),
      await section("", () => matching(reader, asked)),
    ],
    isLive: !query.page_token,
  };
}

async function matching(reader, asked) {
  const { items, next_page_token } = await reader.get("/v1/schedules", {
    page_size: 50,
    ...asked,
  });
  return [
    table(
      [
        ["Schedule", (one) => one.schedule_id],
        ["Topic", (one) => link("topics", [one.topic], one.topic)],
        ["State", (one) => state(one.state)],
        ["Due", (one) => when(one.deliver_at) ?? ""],
        ["Cron", (one) => (one.cron ? `${one.cron} (${one.time_zone})` : "")],
        [
          "Message",
          (one) => (one.message_id ? link("messages", [one.message_id], one.message_id) : ""),
        ],
        ["Reason", (one) => one.reason ?? ""],
      ],
      items,
      "No schedule matches.",
    ),
    next("schedules", [], asked, next_page_token),
    el("h2", {}, "Change one"),
    ...commands(["Cancel it:", path`/v1/schedules/${PLACE}`, { method: "DELETE" }]),
  ];
}
