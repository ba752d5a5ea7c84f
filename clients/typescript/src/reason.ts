/**
 * A text that the service takes as a reason: at most so many characters, not empty, without control
 * characters and halves of surrogate pairs.
 */
export function asReason(text: string, maxCharacters: number): string {
  // Cut first: a text can be long, and a character has at most two units.
  const plain = text
    .slice(0, 2 * maxCharacters)
    .replace(/\p{Cc}+/gu, " ")
    .replace(/\p{Surrogate}/gu, "\uFFFD");
  return [...plain].slice(0, maxCharacters).join("").trim() || "no reason";
}

/** The text of a value that was thrown; none where it cannot be turned into one. */
export function textOf(thrown: unknown): string {
  try {
    return String(thrown);
  } catch {
    return "";
  }
}

const MAX_LINE = 1_000;

/** An error on one line, with its cause. */
export function asLine(error: unknown): string {
  const cause = error instanceof Error ? error.cause : undefined;
  const by = cause === undefined ? "" : ` (cause: ${textOf(cause)})`;
  return asReason(`${textOf(error)}${by}`, MAX_LINE);
}
