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
import { MOST_HOPS, type Retry, retrying } from "./retry.js";

type Verb = "get" | "put" | "post" | "patch" | "delete";

/** What a single call may set, beside the parameters and the body of its operation. */
export interface CallOptions {
  /** Ends the call, which then throws the reason of the signal. */
  signal?: AbortSignal | undefined;
  retry?: Partial<Retry> | undefined;
  /** Time for one try, without the time that the request asks the service to wait. */
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

/** The POST operations that take an `Idempotency-Key`. Each call has one for all of its tries. */
export const KEYED: ReadonlySet<string> = new Set([
  "/v1/topics/{topic}/messages",
  "/v1/topics/{topic}/messages/batch",
  "/v1/topics/{topic}/messages/raw",
  "/v1/topics/{topic}/messages/stream",
  "/v1/transactions",
  "/v1/topics",
  "/v1/schedules",
  "/v1/groups/{group}/dead-letters/redrive",
  "/v1/topics/{topic}/requests",
  "/v1/requests/{request_id}/reply",
  "/v1/audit/reports",
]);
/** The POST operations that begin something and take no key: repeated, they would do it twice. */
const ONCE: ReadonlySet<string> = new Set([
  "/v1/producer-groups/{producer_group}/rotate-secret",
  "/v1/producer-groups/{producer_group}/check-test",
  "/v1/admin/store/verify",
  "/v1/admin/retention/run",
]);
const RECEIVE = "/v1/groups/{group}/receive";

/** An init of openapi-fetch, as far as this file reads it. */
interface Loose extends CallOptions {
  body?: unknown;
  fetch?: Connection["fetch"];
  params?: { header?: Record<string, unknown>; query?: Record<string, unknown> };
}
type LooseRequest = (
  method: Verb,
  path: string,
  init: object,
) => Promise<{ data?: unknown; error?: unknown; response: Response }>;

export function newApi(connection: Connection): Api {
  const { apiKey, fetch } = connection;
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
  const isReadOnce = init.body instanceof ReadableStream;
  if (ONCE.has(path) || isReadOnce) limits.totalMs = 0;
  const patience = timeoutMs + waitMs(init);
  const { addresses, clock } = connection;
  const attempt = async (): Promise<unknown> => {
    const asked = addresses.now;
    try {
      return await once(connection, asked, request, method, path, init, patience);
    } catch (error) {
      addresses.note(error, asked);
      throw error;
    }
  };
  return retrying(attempt, {
    retry: limits,
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
  const done = new AbortController();
  void clock
    .sleep(patience, done.signal)
    .then(() => controller.abort(new Error(`no response within ${patience} ms`)));
  let isSent = false;
  const fetch = (sent: Request): Promise<Response> => {
    isSent = true;
    return (init.fetch ?? connection.fetch)(sent);
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
    throw new Unreachable(`${what}: ${rootOf(cause)}`, { cause });
  } finally {
    done.abort();
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

/** The same call with what makes it repeatable: a key for all tries, or the id of a receive. */
function repeatable(method: Verb, path: string, init: Loose): Loose {
  if (method !== "post") return init;
  if (KEYED.has(path)) {
    const header = { "Idempotency-Key": newId(), ...init.params?.header };
    return { ...init, params: { ...init.params, header } };
  }
  if (path === RECEIVE) return { ...init, body: { attempt_id: newId(), ...(init.body as object) } };
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
