import { randomUUID } from "node:crypto";
import createClient, {
  type Client,
  type MaybeOptionalInit,
  type MethodResponse,
} from "openapi-fetch";
import type { PathsWithMethod, RequiredKeysOf } from "openapi-typescript-helpers";
import type { Addresses } from "./addresses.js";
import { type Clock, linked } from "./clock.js";
import { ProblemError, RefusedEntries, Unreachable } from "./errors.js";
import type { paths } from "./generated/api.js";
import { KEYED, REMOVING, SENT_ONCE } from "./generated/operations.js";
import { MOST_HOPS, type Retry, retrying } from "./retry.js";

type Verb = "get" | "put" | "post" | "patch" | "delete";

/** What a single call may set, beside the parameters and the body of its operation. */
export interface CallOptions {
  /** Ends the call, which then throws the reason of the signal. */
  signal?: AbortSignal | undefined;
  retry?: Partial<Retry> | undefined;
  /** Time of a try without a sign of the service, beside that which the request asks it to wait. */
  timeoutMs?: number | undefined;
  /** Takes the error of each try that is repeated: the first ones of an outage, for example. */
  onRetry?: ((error: unknown) => void) | undefined;
}

/** An init of openapi-fetch, but for its signal, which may not be undefined. */
type WithoutSignal<Init> = Init extends unknown ? Omit<Init, "signal"> : never;
type Init<Given> =
  RequiredKeysOf<Given> extends never ? [(Given & CallOptions)?] : [Given & CallOptions];
/** The JSON of an operation that has several types of content; nothing where it has no content. */
type Answer<Json, Any> = [Json] extends [never] ? ([Any] extends [never] ? undefined : Any) : Json;
type Returned<V extends Verb, Path extends PathsWithMethod<paths, V>, Given> = Answer<
  MethodResponse<Client<paths, "application/json">, V, Path, Given>,
  MethodResponse<Client<paths>, V, Path, Given>
>;
type Call<V extends Verb> = <
  Path extends PathsWithMethod<paths, V>,
  Given extends WithoutSignal<MaybeOptionalInit<paths[Path], V>>,
>(
  path: Path,
  ...init: Init<Given>
) => Promise<Returned<V, Path, Given>>;

/**
 * Every operation of the service by its method and path, typed. The promise has the data of the
 * response; a refusal throws `ProblemError`, a refused entry of a batch `RefusedEntries`.
 */
export type Api = { [V in Verb as Uppercase<V>]: Call<V> };

export interface Connection {
  addresses: Addresses;
  apiKey: string | undefined;
  retry: Retry;
  timeoutMs: number;
  clock: Clock;
  fetch: (request: Request) => Promise<Response>;
}

/** Codes of answers without a problem document, with which a proxy says that it got none. */
const FROM_A_PROXY = new Set(["http_502", "http_503", "http_504"]);

const RECEIVE = "POST /v1/groups/{group}/receive";

/** What `fetch` takes as the value of a header; it shows any other in its error. */
const IN_A_HEADER = /^[\t\x20-\x7e\x80-\xff]*$/;
const UNFIT = "has a character that a header cannot have, such as a line break";

/** An init of openapi-fetch, as far as this file reads it. */
interface Loose extends CallOptions {
  body?: unknown;
  fetch?: Connection["fetch"];
  params?: {
    header?: Record<string, unknown>;
    path?: Record<string, unknown>;
    query?: Record<string, unknown>;
  };
}
type LooseRequest = (
  method: Verb,
  path: string,
  init: object,
) => Promise<{ data?: unknown; error?: unknown; response: Response }>;

export function newApi(connection: Connection): Api {
  const { fetch } = connection;
  const apiKey = connection.apiKey?.trim();
  if (apiKey && !IN_A_HEADER.test(apiKey)) throw new TypeError(`apiKey ${UNFIT}`);
  const headers = !apiKey ? {} : { authorization: `Bearer ${apiKey}` };
  const client = createClient<paths>({ fetch, headers });
  const request = client.request as unknown as LooseRequest;
  const verb = (method: Verb) => (path: string, init?: Loose) =>
    call(connection, request, method, path, init ?? {});
  return {
    GET: verb("get"),
    PUT: verb("put"),
    POST: verb("post"),
    PATCH: verb("patch"),
    DELETE: verb("delete"),
  } as unknown as Api;
}

async function call(
  connection: Connection,
  request: LooseRequest,
  method: Verb,
  path: string,
  given: Loose,
): Promise<unknown> {
  const { onRetry, ...rest } = repeatable(method, path, given);
  const { retry = {}, timeoutMs = connection.timeoutMs, ...init } = rest;
  const limits = { ...connection.retry, ...retry };
  for (const [name, value] of Object.entries(init.params?.path ?? {})) checkPart(name, value);
  const isReadOnce = init.body instanceof ReadableStream;
  if (isReadOnce) limits.totalMs = 0;
  const patience = timeoutMs + waitMs(init);
  const { addresses, clock } = connection;
  const attempt = async (): Promise<unknown> => {
    const asked = addresses.now;
    const begun = clock.now();
    try {
      return await once(connection, asked, request, method, path, init, patience);
    } catch (error) {
      const isLate = isOver(init.signal) && clock.now() - begun > waitMs(init);
      addresses.note(isLate ? new Unreachable("the time of the call is over") : error, asked);
      throw error;
    }
  };
  return retrying(attempt, {
    retry: limits,
    isSentOnce: SENT_ONCE.has(nameOf(method, path)),
    onlyRemoves: REMOVING.has(nameOf(method, path)) && init.params?.query?.["dry_run"] !== true,
    mostHops: isReadOnce ? 0 : MOST_HOPS,
    rounds: (tries) => addresses.rounds(tries),
    clock,
    signal: init.signal,
    onRetry,
  });
}

async function once(
  { clock, ...connection }: Connection,
  baseUrl: string,
  request: LooseRequest,
  method: Verb,
  path: string,
  init: Loose,
  patience: number,
): Promise<unknown> {
  const { controller, release } = linked(init.signal);
  let waiting = new AbortController();
  let isDone = false;
  const wait = (what: string): void => {
    waiting.abort(); // what was waited for has come
    if (isDone) return; // the program reads the rest itself, in its own time
    const late = (waiting = new AbortController());
    void clock.sleep(patience, late.signal).then(() => {
      if (!late.signal.aborted) controller.abort(new Error(`${what} within ${patience} ms`));
    });
  };
  wait("no response");
  let isSent = false;
  const fetch = async (sent: Request): Promise<Response> => {
    isSent = true;
    const response = await (init.fetch ?? connection.fetch)(sent);
    const came = (): void => wait("no further part of the response");
    return watched(response, came, controller.signal);
  };
  let answer;
  try {
    answer = await request(method, path, {
      ...init,
      baseUrl,
      fetch,
      signal: controller.signal,
    });
  } catch (error) {
    if (init.signal?.aborted) throw init.signal.reason;
    if (!isSent) throw error; // no request can be made of what was given, such as a BigInt
    const cause = controller.signal.aborted ? controller.signal.reason : error;
    const what = `no response from ${method.toUpperCase()} ${path} at ${new URL(baseUrl).host}`;
    throw new Unreachable(`${what}: ${rootOf(cause)}`, {
      cause,
      outcomeUnknown: !isNeverSent(cause),
    });
  } finally {
    isDone = true;
    waiting.abort();
    release();
  }
  const { data, error, response } = answer;
  if (!response.ok) {
    const problem = ProblemError.of(response, error);
    if (FROM_A_PROXY.has(problem.code)) throw new Unreachable(problem.message, { cause: problem });
    throw problem;
  }
  if (response.status === 207) throw new RefusedEntries(data as RefusedEntries["answer"]);
  return data;
}

/** What the first of the causes says: `fetch` itself says only that it failed. */
function rootOf(error: unknown): string {
  let root = error;
  while (root instanceof Error && root.cause !== undefined) root = root.cause;
  if (!(root instanceof Error)) return String(root);
  const { code } = root as { code?: unknown }; // all that an AggregateError of addresses has
  return root.message || String(code ?? root.name);
}

/** Errors of `fetch` before it has a connection. */
const UNCONNECTED = new Set(["UND_ERR_CONNECT_TIMEOUT"]);
const CONNECTING = new Set(["connect", "getaddrinfo"]);

/** Did a request fail before there was a connection to send it on? */
function isNeverSent(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code, syscall } = error as { code?: string; syscall?: string };
  if (UNCONNECTED.has(code ?? "") || CONNECTING.has(syscall ?? "")) return true;
  const tried = error instanceof AggregateError ? error.errors : [error.cause]; // of each address
  return tried.length > 0 && tried.every(isNeverSent);
}

/** The same response, which says of each part of its body that it has come. */
function watched(response: Response, came: () => void, signal: AbortSignal): Response {
  if (!response.body) return response;
  const parts = new TransformStream<Uint8Array, Uint8Array>({
    transform(part, stream) {
      came();
      stream.enqueue(part);
    },
  });
  return new Response(response.body.pipeThrough(parts, { signal }), response);
}

/** Has the time ended that `AbortSignal.timeout` gave a call? */
function isOver(signal: AbortSignal | undefined): boolean {
  return signal?.aborted === true && (signal.reason as { name?: unknown })?.name === "TimeoutError";
}

/** `fetch` resolves "." and "..", also encoded: the request would go to another resource. */
function checkPart(name: string, value: unknown): void {
  const text = String(value);
  if (["", ".", ".."].includes(text)) throw new TypeError(`${name} cannot be "${text}" in a path`);
}

function nameOf(method: Verb, path: string): string {
  return `${method.toUpperCase()} ${path}`;
}

/** The same call with what makes it repeatable: a key for all tries, or the id of a receive. */
function repeatable(method: Verb, path: string, init: Loose): Loose {
  const name = nameOf(method, path);
  if (KEYED.has(name)) {
    const header = { "Idempotency-Key": newId(), ...init.params?.header };
    return { ...init, params: { ...init.params, header } };
  }
  if (name === RECEIVE) return { ...init, body: { attempt_id: newId(), ...(init.body as object) } };
  return init;
}

/** How long the request itself asks the service to wait. */
function waitMs({ body, params }: Loose): number {
  const wanted = (body as { wait_ms?: unknown } | undefined)?.wait_ms ?? params?.query?.["wait_ms"];
  return typeof wanted === "number" ? wanted : 0;
}

/** An id that no other call has. */
export function newId(): string {
  return randomUUID();
}
