import type { Schemas } from "./schemas.js";

type WithPayload = Pick<Schemas["Message"], "payload" | "payload_encoding">;

/** The body of a message. */
export function bytes({ payload = "", payload_encoding }: WithPayload): Uint8Array {
  return Buffer.from(payload, payload_encoding === "base64" ? "base64" : "utf8");
}

/** The body of a message as text. */
export function text(message: WithPayload): string {
  return Buffer.from(bytes(message)).toString("utf8");
}

/** The body of a message as a JSON value. */
export function json<Value = unknown>(message: WithPayload): Value {
  return JSON.parse(text(message)) as Value;
}
