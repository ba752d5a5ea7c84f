// Elements of a page. What the service answers becomes text and never markup, whatever it contains.

import { curl } from "./api.js";

const SHOWN_CHARACTERS = 20_000;

/** An element; children that are undefined, null or false are left out, strings become text. */
export function el(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(attribute, value);
    else if (value !== undefined && value !== false) element.setAttribute(attribute, value);
  }
  element.append(...children.flat().filter((child) => (child ?? false) !== false));
  return element;
}

/** A link within the console, to the page of `names`. */
export function link(page, names, text, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const search = new URLSearchParams(given).toString();
  const target = ["#", page, ...names.map(encodeURIComponent)].join("/");
  return el("a", { href: search ? `${target}?${search}` : target }, String(text));
}

/** A table. `columns`: [heading, row => content, class] each. */
export function table(columns, rows, empty = "None.") {
  if (!rows.length) return el("p", { class: "faint" }, empty);
  const head = columns.map(([heading, , kind]) => el("th", { scope: "col", class: kind }, heading));
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      columns.map(([, content, kind]) => el("td", { class: kind }, content(row))),
    ),
  );
  return el(
    "div",
    { class: "scroll" },
    el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)),
  );
}

/** Names with values; those without a value are left out. */
export function facts(pairs) {
  const known = Object.entries(pairs).filter(([, value]) => value !== undefined && value !== null);
  return el(
    "dl",
    {},
    known.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]).flat(),
  );
}

/** Large figures side by side: [figure, what it is, class] each. */
export function tiles(figures) {
  return el(
    "div",
    { class: "tiles" },
    figures.map(([figure, name, kind]) =>
      el("div", { class: "tile" }, el("b", { class: kind }, String(figure)), el("span", {}, name)),
    ),
  );
}

/** A section whose content is awaited; where that is refused, it says why, and the rest stays. */
export async function section(title, content) {
  const part = el("section", {}, title && el("h2", {}, title));
  try {
    part.append(...[await content()].flat().filter(Boolean));
  } catch (error) {
    if (error.status === 401 || error.name === "AbortError") throw error;
    part.append(problem(error));
  }
  return part;
}

/** Why there is nothing else to show. */
export function problem(error) {
  const { title, detail, code, context } = error.document ?? {
    title: error.message,
  };
  return el(
    "div",
    { class: "problem", role: "alert" },
    el("b", {}, title),
    detail && el("p", {}, detail),
    context?.primary && el("p", {}, `The primary is ${context.primary}.`),
    code && el("p", {}, el("a", { href: `../problems/${encodeURIComponent(code)}` }, code)),
  );
}

/** A form that leads to the same page with what is filled in. `fields`: elements with a name. */
export function filters(go, ...fields) {
  const form = el("form", {}, fields, el("button", {}, "Show"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go(Object.fromEntries(new FormData(form)));
  });
  return form;
}

export function input(name, text, value, attributes = {}) {
  return el("label", {}, text, el("input", { name, value: value ?? "", ...attributes }));
}

export function select(name, text, choices, chosen) {
  const options = choices.map(([value, words]) =>
    el("option", { value, selected: value === chosen ? "" : undefined }, words),
  );
  return el("label", {}, text, el("select", { name }, options));
}

/** A link to the page after this one, where there is one. */
export function next(page, names, query, token) {
  if (!token) return undefined;
  return el("p", {}, link(page, names, "Next page", { ...query, page_token: token }));
}

/** What to type to change something, since the console itself changes nothing. */
export function commands(...given) {
  return given
    .map(([words, target, options]) => [el("p", {}, words), el("pre", {}, curl(target, options))])
    .flat();
}

/** The body of a message, as far as it fits a page. */
export function payload(message) {
  const text = message.payload ?? "";
  const notes = [message.payload_encoding === "base64" ? "base64" : undefined];
  if (message.payload_problem) notes.push(message.payload_problem);
  if (text.length > SHOWN_CHARACTERS) notes.push(`the first ${count(SHOWN_CHARACTERS)} characters`);
  return [
    el("pre", {}, text.slice(0, SHOWN_CHARACTERS)),
    notes.some(Boolean) && el("p", { class: "faint" }, notes.filter(Boolean).join(", ")),
  ].filter(Boolean);
}

export function when(text) {
  if (!text) return undefined;
  return el("time", { datetime: text }, text.replace("T", " ").replace("Z", ""));
}

export function count(number) {
  return number === undefined ? undefined : number.toLocaleString("en");
}

export function rate(number) {
  return number === undefined ? undefined : `${fixed(number, 1)}/s`;
}

export function percent(ratio) {
  return ratio === undefined ? undefined : `${(100 * ratio).toFixed(1)} %`;
}

export function milliseconds(number) {
  return number === undefined ? undefined : `${fixed(number, 2)} ms`;
}

/** A length of time, in its largest unit. */
export function duration(ms) {
  if (ms === undefined) return undefined;
  const units = [
    [86_400_000, "d"],
    [3_600_000, "h"],
    [60_000, "min"],
    [1_000, "s"],
  ];
  const [size, unit] = units.find(([size]) => ms >= size) ?? [1, "ms"];
  return `${fixed(ms / size, size > 1 ? 1 : 0)} ${unit}`;
}

export function bytes(number) {
  if (number === undefined) return undefined;
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; Math.abs(number) >= 1024 && at < units.length - 1; at += 1) number /= 1024;
  return `${fixed(number, at ? 1 : 0)} ${units[at]}`;
}

export function byteRate(number) {
  return number === undefined ? undefined : `${bytes(number)}/s`;
}

function fixed(number, digits) {
  return number.toLocaleString("en", { maximumFractionDigits: digits });
}

const KINDS = {
  acked: "good",
  committed: "good",
  done: "good",
  prepared: "warn",
  running: "warn",
  skipped: "warn",
  discarded: "warn",
  held: "bad",
  failed: "bad",
  set_aside: "bad",
  dead_lettered: "bad",
  damaged: "bad",
};

/** A state, in the colour of its kind. */
export function state(word) {
  return word && el("span", { class: KINDS[word] }, word.replaceAll("_", " "));
}
