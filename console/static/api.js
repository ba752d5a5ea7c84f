// The service's HTTP API, as far as the console reads it.

const KEY = "escrowmq-api-key";
const TIMEOUT_MS = 15_000;
// No answer, and those of a service, of a replica that may become the service, or of a proxy before
// them: what is refused may be answered a moment later.
const PASSING = [0, 421, 502, 503, 504];

/** An answer that is a problem document, or no answer at all. */
export class Problem extends Error {
  constructor(status, document) {
    super(document.detail ?? document.title);
    this.status = status;
    this.document = document;
  }
}

// For this tab alone, and gone with it.
export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** What a page asks for: its requests can be shown as commands, and end with the page. */
export class Reader {
  #ended = new AbortController();

  constructor() {
    /** The paths that were asked for, in order. */
    this.asked = [];
    /** Whether something could not be read that may be there a moment later. */
    this.hasMissed = false;
  }

  end() {
    this.#ended.abort();
  }

  get hasEnded() {
    return this.#ended.signal.aborted;
  }

  /** The JSON at `path`. Parts of the query that are empty are left out. Throws Problem. */
  async get(path, query = {}) {
    const response = await this.#ask(path, query);
    const body = await response.json().catch(() => undefined);
    if (!response.ok) throw this.#problem(response.status, body);
    if (body === undefined) throw this.#problem(0, { title: "The answer is not JSON" });
    return body;
  }

  /** The text at `path`. Throws Problem. */
  async text(path) {
    const response = await this.#ask(path, {});
    if (!response.ok) throw this.#problem(response.status);
    return response.text();
  }

  /** `document`: the body, which a proxy may have made. */
  #problem(status, document) {
    if (PASSING.includes(status)) this.hasMissed = true;
    return new Problem(status, document?.title ? document : { title: `Status ${status}` });
  }

  async #ask(path, query) {
    const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
    const search = new URLSearchParams(given).toString();
    const target = search ? `${path}?${search}` : path;
    this.asked.push(target);
    const headers = key.get() ? { Authorization: `Bearer ${asHeader(key.get())}` } : {};
    try {
      // Relative, so that it also works behind a proxy that has the service below a path.
      return await fetch(`..${target}`, {
        headers,
        signal: AbortSignal.any([this.#ended.signal, AbortSignal.timeout(TIMEOUT_MS)]),
        cache: "no-store",
      });
    } catch (error) {
      if (this.hasEnded) throw error;
      const detail =
        error.name === "TimeoutError" ? `No answer in ${TIMEOUT_MS / 1000} s.` : error.message;
      throw this.#problem(0, { title: "The service cannot be reached", detail });
    }
  }
}

/** The UTF-8 bytes of a key, of which fetch takes one for each character. */
function asHeader(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

/** A path from its parts; each part that is not fixed is a name and is escaped. */
export function path(fixed, ...names) {
  return fixed.reduce(
    (whole, part, at) => whole + part + (at < names.length ? encodeURIComponent(names[at]) : ""),
    "",
  );
}

/** The request as a command for a shell. */
export function curl(target, { method = "GET", body } = {}) {
  const parts = ["curl", quoted(new URL(`..${target}`, document.baseURI).href)];
  if (method !== "GET" && body === undefined) parts.splice(1, 0, "-X", method);
  if (key.get()) parts.push("-H", '"Authorization: Bearer $ESCROWMQ_KEY"');
  if (body !== undefined) parts.push("--json", quoted(JSON.stringify(body)));
  return parts.join(" ");
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
