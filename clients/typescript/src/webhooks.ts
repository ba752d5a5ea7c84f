import { createHmac, timingSafeEqual } from "node:crypto";
import { EscrowMQError } from "./errors.js";

const ID = "webhook-id";
const TIMESTAMP = "webhook-timestamp";
const SIGNATURE = "webhook-signature";
const PREFIX = "whsec_";
const VERSION = "v1";
const TOLERANCE_SECONDS = 300;

/** The request is not what its sender signed, or is too old. Do not act on it. */
export class InvalidSignature extends EscrowMQError {
  override name = "InvalidSignature";
}

/** Headers as `fetch` and as Node have them. */
export type AnyHeaders =
  | Pick<Headers, "get">
  | Readonly<Record<string, string | readonly string[] | undefined>>;

/**
 * The id of a request that was signed with one of the secrets (Standard Webhooks) and is at most
 * 300 seconds old. Throws `InvalidSignature`.
 *
 * `rawBody`: the bytes as they came, before anything decodes them. A request can be repeated within
 * that time, so act such that a second time changes nothing.
 */
export function verify(
  secrets: readonly string[],
  headers: AnyHeaders,
  rawBody: Uint8Array | string,
  { nowMs = Date.now(), toleranceSeconds = TOLERANCE_SECONDS } = {},
): string {
  if (typeof rawBody !== "string" && !(rawBody instanceof Uint8Array)) {
    throw new TypeError("verify takes the raw body, before it is parsed");
  }
  const [id, timestamp, signatures] = [ID, TIMESTAMP, SIGNATURE].map((name) => {
    const value = header(headers, name);
    if (!value) throw new InvalidSignature(`the header ${name} is missing`);
    return value;
  }) as [string, string, string];
  if (!/^\d{1,15}$/.test(timestamp)) {
    throw new InvalidSignature("the timestamp is no number of seconds");
  }
  if (Math.abs(nowMs / 1_000 - Number(timestamp)) > toleranceSeconds) {
    throw new InvalidSignature(`the timestamp is more than ${toleranceSeconds} s from now`);
  }
  const given = signatures.split(" ").flatMap((entry) => {
    const [version, signature = ""] = entry.split(",", 2);
    return version === VERSION ? [Buffer.from(signature)] : [];
  });
  let isSigned = false;
  for (const secret of secrets) {
    const hmac = createHmac("sha256", key(secret)).update(`${id}.${timestamp}.`).update(rawBody);
    const expected = Buffer.from(hmac.digest("base64"));
    for (const one of given) {
      // All are compared, each in constant time.
      if (one.length === expected.length && timingSafeEqual(one, expected)) isSigned = true;
    }
  }
  if (!isSigned) throw new InvalidSignature("no signature matches");
  return id;
}

function header(headers: AnyHeaders, name: string): string | undefined {
  // By its method: a framework may have a class `Headers` of its own.
  if (isFetchHeaders(headers)) return headers.get(name) ?? undefined;
  const found = Object.entries(headers).find(([one]) => one.toLowerCase() === name)?.[1];
  return typeof found === "string" ? found : found?.[0];
}

function isFetchHeaders(headers: AnyHeaders): headers is Pick<Headers, "get"> {
  return typeof headers["get" as keyof AnyHeaders] === "function";
}

/** Throws where there is no secret, or one is malformed. */
export function requireSecrets(secrets: readonly string[]): void {
  if (!Array.isArray(secrets) || secrets.length === 0) throw new TypeError("give a signing secret");
  for (const secret of secrets) key(secret);
}

/** Throws where the secret is not one; its text is not repeated. */
function key(secret: string): Buffer {
  if (typeof secret !== "string") throw new TypeError("a signing secret is a string");
  const text = secret.startsWith(PREFIX) ? secret.slice(PREFIX.length) : secret;
  const bytes = Buffer.from(text, "base64");
  if (bytes.toString("base64") !== text || bytes.length < 24 || bytes.length > 64) {
    throw new TypeError(`a signing secret is ${PREFIX} and the base64 of 24 to 64 bytes`);
  }
  return bytes;
}
