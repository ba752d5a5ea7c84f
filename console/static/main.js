// Which page is shown, and when it is read again.

import { Reader, curl, key } from "./api.js";
import { el, problem } from "./view.js";
import * as audit from "./pages/audit.js";
import * as groups from "./pages/groups.js";
import * as messages from "./pages/messages.js";
import * as node from "./pages/node.js";
import * as overview from "./pages/overview.js";
import * as schedules from "./pages/schedules.js";
import * as topics from "./pages/topics.js";
import * as transactions from "./pages/transactions.js";

const REFRESH_MS = 5_000;
const NO_PAGE = "There is no such page.";

// By the first part of the address and the number of names behind it.
const PAGES = {
  "/0": overview.show,
  "transactions/0": transactions.list,
  "transactions/1": transactions.show,
  "topics/0": topics.list,
  "topics/1": topics.show,
  "topics/2": topics.queue,
  "groups/0": groups.list,
  "groups/1": groups.show,
  "messages/0": messages.find,
  "messages/1": messages.show,
  "schedules/0": schedules.list,
  "audit/0": audit.list,
  "audit/1": audit.show,
  "node/0": node.show,
};

const place = document.getElementById("page");
const signOut = document.getElementById("sign-out");
let reader = new Reader();
let timer;

/** The address behind `#`: the page, the names in it, and the query. */
function address() {
  const [names, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = names.split("/").map(decoded);
  return {
    page,
    names: rest,
    query: Object.fromEntries(new URLSearchParams(search)),
  };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    throw new Error(NO_PAGE);
  }
}

async function draw({ isRefresh = false } = {}) {
  clearTimeout(timer);
  reader.end();
  place.setAttribute("aria-busy", "true");
  const mine = (reader = new Reader());
  let content;
  let isLive = false;
  try {
    const { page, names, query } = address();
    markCurrent(page);
    const make = PAGES[`${page}/${names.length}`];
    if (!make) throw new Error(NO_PAGE);
    content = await make({ reader: mine, names, query, go });
    isLive = content.isLive ?? false;
    content = [...content.parts, footer(mine.asked)];
  } catch (error) {
    if (mine.hasEnded) return;
    content = error.status === 401 ? [keyForm()] : [problem(error)];
  }
  if (mine.hasEnded) return;
  place.removeAttribute("aria-busy");
  // Its reader may have begun to type or select something while it was read again.
  if (isRefresh && isInUse()) {
    timer = setTimeout(refresh, REFRESH_MS);
    return;
  }
  place.replaceChildren(...content.filter(Boolean));
  document.title = `${place.querySelector("h1")?.textContent ?? "EscrowMQ"} · EscrowMQ`;
  signOut.hidden = !key.get();
  // Where the service is away, the page comes by itself when it is back.
  if (isLive || mine.hasMissed) timer = setTimeout(refresh, REFRESH_MS);
}

/** Another page: from its top, and for a screen reader from its beginning. */
async function open() {
  await draw();
  scrollTo(0, 0);
  place.focus({ preventScroll: true });
}

/** Draw again, but not under the hands of its reader, nor where no one looks. */
function refresh() {
  if (document.hidden || isInUse()) timer = setTimeout(refresh, REFRESH_MS);
  else draw({ isRefresh: true });
}

/** Whether something on the page is selected, focused, open or filled in. */
function isInUse() {
  const focused = document.activeElement;
  return (
    !getSelection().isCollapsed ||
    (focused !== place && place.contains(focused)) ||
    place.querySelector("details[open]") !== null ||
    [...place.querySelectorAll("form")].some(isFilledIn)
  );
}

/** Whether the form is not as it was drawn. */
function isFilledIn(form) {
  const drawn = form.cloneNode(true);
  drawn.reset();
  return fields(form) !== fields(drawn);
}

function fields(form) {
  return new URLSearchParams(new FormData(form)).toString();
}

/** The same page with another query. */
function go(query) {
  const given = Object.entries(query).filter(([, value]) => value !== "");
  const before = location.hash;
  location.hash = `${before.split("?")[0] || "#/"}?${new URLSearchParams(given)}`;
  if (location.hash === before) draw();
}

function markCurrent(page) {
  for (const one of document.querySelectorAll("nav a")) {
    if (one.getAttribute("href") === `#/${page}`) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
}

function footer(asked) {
  return el(
    "footer",
    {},
    el(
      "details",
      {},
      el("summary", {}, "The same with curl"),
      el("pre", {}, asked.map((target) => curl(target)).join("\n")),
    ),
    el(
      "p",
      {},
      `Read at ${new Date().toISOString().slice(11, 19)}. Times are in UTC. `,
      "The console changes nothing.",
    ),
  );
}

function keyForm() {
  const field = el("input", {
    type: "password",
    autocomplete: "off",
    required: "",
  });
  const form = el("form", {}, el("label", {}, "API key", field), el("button", {}, "Sign in"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(field.value.trim());
    draw();
  });
  const words = key.get()
    ? "The service does not know this API key."
    : "The service needs an API key. It stays in this tab; what the key may not read is left out.";
  return el("section", {}, el("h1", {}, "Sign in"), el("p", {}, words), form);
}

signOut.addEventListener("click", () => {
  key.forget();
  draw();
});
addEventListener("hashchange", open);
draw();
