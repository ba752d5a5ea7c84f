export { type Api, type CallOptions } from "./api.js";
export {
  type AnswerCheck,
  type CheckAnswer,
  type CheckedTransaction,
  Checker,
  type CheckerOptions,
  checkHandler,
  type CheckHandlerOptions,
  nodeCheckHandler,
  type NodeRequest,
  type NodeResponse,
  type Secrets,
} from "./checker.js";
export { EscrowMQ, type Options, type RequestOptions } from "./client.js";
export { type Clock, systemClock } from "./clock.js";
export {
  CommitPending,
  type EntryProblem,
  type EntryResult,
  EscrowMQError,
  Fenced,
  IdTaken,
  LeaseLost,
  MarkerCommitsAlone,
  NotCommitted,
  NotMarked,
  ProblemError,
  RefusedEntries,
  Unreachable,
} from "./errors.js";
export {
  CHECK_HORIZON_MS,
  type MarkerOptions,
  type Markers,
  type MarkerStore,
  type MySqlConnection,
  mysqlMarkers,
  type Outcome,
  type PgClient,
  pgMarkers,
  type SqliteDatabase,
  sqliteMarkers,
  type SyncMarkerStore,
} from "./markers.js";
export { bytes, json, text } from "./message.js";
export { defaultRetry, type Retry } from "./retry.js";
export type { MessageInput, Problem, ReceivedMessage, Schemas } from "./schemas.js";
export type {
  MarkedTransaction,
  SyncTransaction,
  Transaction,
  TransactionOptions,
} from "./transaction.js";
export { type AnyHeaders, InvalidSignature, verify } from "./webhooks.js";
export { DeadLetter, type Handler, Redeliver, Worker, type WorkerOptions } from "./worker.js";
