import { Fenced, MarkerCommitsAlone } from "./errors.js";

export type Outcome = "commit" | "rollback";

/**
 * The marker rows of a database: a row with the id of a transaction says what became of it. The
 * table has the same columns for the clients of all languages.
 */
export interface Markers {
  /**
   * The outcome of a transaction, decided now if it has none: where no row exists, `rollback` is
   * inserted, with which the mark of a slow transaction collides.
   */
  readonly outcome: (transactionId: string) => Promise<Outcome>;
  /** Create the table if it does not exist. */
  create(): Promise<void>;
  /**
   * Delete the rows that are older; their number. At least `CHECK_HORIZON_MS`: rows answer checks,
   * and a committed transaction without its row would be answered `rollback`. Longer where
   * `unreachable_limit_ms` is, or where held transactions are resumed later.
   */
  prune(olderThanMs: number): Promise<number>;
}

/** Markers of a database whose statements are awaited, by what runs those of a transaction. */
export interface MarkerStore<Db> extends Markers {
  /**
   * Insert `commit` in the caller's transaction. Throws `Fenced` if the id has a row already, and
   * `MarkerCommitsAlone` if no transaction is open.
   */
  mark(db: Db, transactionId: string): Promise<void>;
}

/** The same where statements run at once, in transactions that do not wait for anything. */
export interface SyncMarkerStore<Db> extends Markers {
  markSync(db: Db, transactionId: string): void;
}

export interface MarkerOptions {
  /** Letters, digits and underscores, with a schema in front if need be. */
  table?: string | undefined;
}

/** A check can come so long after its begin: a day unanswered, and the service away for another. */
export const CHECK_HORIZON_MS = 2 * 86_400_000;

const TABLE = "escrowmq_markers";
const TRIES = 5;

// -------------------------------------------------------------------------------------------
// PostgreSQL

/** A client of `pg` in a transaction, and a pool. */
export interface PgClient {
  query(text: string, values?: unknown[]): Promise<{ rows: unknown[]; rowCount: number | null }>;
}

/** Markers in PostgreSQL, by a pool of `pg`. */
export function pgMarkers(pool: PgClient, options: MarkerOptions = {}): MarkerStore<PgClient> {
  const { table, index, columns } = names(options);
  const insert = `INSERT INTO ${table} ${columns} VALUES ($1, $2, $3)`;
  return {
    async mark(db, id) {
      if (db === pool)
        throw new TypeError("mark takes the client of the transaction, not its pool");
      // Outside of a transaction a savepoint is refused: no_active_sql_transaction.
      const savepoint = "SAVEPOINT escrowmq_mark; RELEASE SAVEPOINT escrowmq_mark";
      await requireOpen(codes("25P01"), () => db.query(savepoint));
      return marked(id, codes("23505"), () => db.query(insert, [id, "commit", Date.now()]));
    },
    // Each statement is a transaction. The insert waits for the end of one that marks this id.
    outcome: (id) =>
      decided({
        isConflict: codes("40001", "40P01"), // serialization failure, deadlock
        fence: () => pool.query(`${insert} ON CONFLICT DO NOTHING`, [id, "rollback", Date.now()]),
        read: async () => {
          const select = `SELECT outcome FROM ${table} WHERE transaction_id = $1`;
          return (await pool.query(select, [id])).rows[0];
        },
      }),
    async create() {
      await pool.query(
        `CREATE TABLE IF NOT EXISTS ${table} (
           transaction_id VARCHAR(127) COLLATE "C" NOT NULL PRIMARY KEY,
           outcome VARCHAR(8) NOT NULL CHECK (outcome IN ('commit', 'rollback')),
           written_at_ms BIGINT NOT NULL)`,
      );
      await pool.query(`CREATE INDEX IF NOT EXISTS ${index} ON ${table} (written_at_ms)`);
    },
    async prune(olderThanMs) {
      const old = `DELETE FROM ${table} WHERE written_at_ms < $1`;
      return (await pool.query(old, [prunedBefore(olderThanMs)])).rowCount ?? 0;
    },
  };
}

// -------------------------------------------------------------------------------------------
// MySQL and MariaDB

/** A connection of `mysql2/promise` in a transaction, and a pool. */
export interface MySqlConnection {
  query(sql: string, values?: unknown[]): Promise<[unknown, unknown]>;
}

/** Markers in MySQL or MariaDB (InnoDB), by a pool of `mysql2/promise`. */
export function mysqlMarkers(
  pool: MySqlConnection,
  options: MarkerOptions = {},
): MarkerStore<MySqlConnection> {
  const { table, index, columns } = names(options);
  const insert = `INSERT INTO ${table} ${columns} VALUES (?, ?, ?)`;
  return {
    async mark(db, id) {
      if (db === pool) throw new TypeError("mark takes the connection of the transaction");
      // Outside of a transaction a savepoint is gone with its statement.
      await db.query("SAVEPOINT escrowmq_mark");
      const release = "RELEASE SAVEPOINT escrowmq_mark";
      await requireOpen(codes("ER_SP_DOES_NOT_EXIST"), () => db.query(release));
      const taken = codes("ER_DUP_ENTRY");
      return marked(id, taken, () => db.query(insert, [id, "commit", Date.now()]));
    },
    // Each statement is a transaction. Both wait for the end of one that marks this id.
    outcome: (id) =>
      decided({
        isConflict: codes("ER_LOCK_DEADLOCK"),
        fence: () => {
          const same = "ON DUPLICATE KEY UPDATE transaction_id = transaction_id";
          return pool.query(`${insert} ${same}`, [id, "rollback", Date.now()]);
        },
        read: async () => {
          // The lock: whatever isolation is set, what is not committed is not read.
          const select = `SELECT outcome FROM ${table} WHERE transaction_id = ?`;
          const [rows] = await pool.query(`${select} LOCK IN SHARE MODE`, [id]);
          return (rows as unknown[])[0];
        },
      }),
    async create() {
      await pool.query(
        `CREATE TABLE IF NOT EXISTS ${table} (
           transaction_id VARCHAR(127) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
           outcome VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
             CHECK (outcome IN ('commit', 'rollback')),
           written_at_ms BIGINT NOT NULL,
           INDEX ${index} (written_at_ms)) ENGINE = InnoDB`,
      );
    },
    async prune(olderThanMs) {
      const old = `DELETE FROM ${table} WHERE written_at_ms < ?`;
      const [result] = await pool.query(old, [prunedBefore(olderThanMs)]);
      return (result as { affectedRows: number }).affectedRows;
    },
  };
}

// -------------------------------------------------------------------------------------------
// SQLite

/** A database of `better-sqlite3` or `node:sqlite`. */
export interface SqliteDatabase {
  exec(sql: string): unknown;
  prepare(sql: string): {
    run(...values: (string | number)[]): { changes: number | bigint };
    get(...values: (string | number)[]): unknown;
  };
}

/**
 * Markers in SQLite, by a connection. `outcome` refuses while a transaction is open on it, so give
 * it a connection of its own where your transactions stay open over an `await`.
 */
export function sqliteMarkers(
  connection: SqliteDatabase,
  options: MarkerOptions = {},
): SyncMarkerStore<SqliteDatabase> {
  const { table, index, columns } = names(options);
  const insert = `INTO ${table} ${columns} VALUES (?, ?, ?)`;
  const markSync = (db: SqliteDatabase, id: string): void => {
    requireOpenSqlite(db);
    try {
      db.prepare(`INSERT ${insert}`).run(id, "commit", Date.now());
    } catch (error) {
      // The drivers have codes of their own; the text is that of SQLite.
      const isTaken = String(error).includes("UNIQUE constraint failed");
      throw isTaken ? new Fenced(id, error) : error;
    }
  };
  const alone = async <Result>(begin: string, run: () => Result): Promise<Result> => {
    connection.exec(begin); // fails inside of another transaction
    try {
      const result = run();
      connection.exec("COMMIT");
      return result;
    } catch (error) {
      connection.exec("ROLLBACK");
      throw error;
    }
  };
  return {
    markSync,
    outcome: (id) =>
      decided({
        isConflict: () => false,
        fence: () =>
          alone("BEGIN IMMEDIATE", () =>
            connection.prepare(`INSERT OR IGNORE ${insert}`).run(id, "rollback", Date.now()),
          ),
        read: () =>
          alone("BEGIN", () =>
            connection.prepare(`SELECT outcome FROM ${table} WHERE transaction_id = ?`).get(id),
          ),
      }),
    async create() {
      connection.exec(
        `CREATE TABLE IF NOT EXISTS ${table} (
           transaction_id TEXT NOT NULL PRIMARY KEY,
           outcome TEXT NOT NULL CHECK (outcome IN ('commit', 'rollback')),
           written_at_ms INTEGER NOT NULL)`,
      );
      connection.exec(`CREATE INDEX IF NOT EXISTS ${index} ON ${table} (written_at_ms)`);
    },
    async prune(olderThanMs) {
      const old = connection.prepare(`DELETE FROM ${table} WHERE written_at_ms < ?`);
      return Number(old.run(prunedBefore(olderThanMs)).changes);
    },
  };
}

// -------------------------------------------------------------------------------------------

type Test = (error: unknown) => boolean;

/** Has an error one of these codes? */
function codes(...wanted: string[]): Test {
  return (error) => wanted.includes((error as { code?: string }).code ?? "");
}

/** Throws `MarkerCommitsAlone` where the statement fails because no transaction is open. */
async function requireOpen(isNone: Test, statement: () => Promise<unknown>): Promise<void> {
  try {
    await statement();
  } catch (error) {
    throw isNone(error) ? new MarkerCommitsAlone(error) : error;
  }
}

/** Throws `MarkerCommitsAlone` where no transaction is open, in which BEGIN would fail. */
function requireOpenSqlite(db: SqliteDatabase): void {
  try {
    db.exec("BEGIN");
  } catch (error) {
    if (String(error).includes("within a transaction")) return;
    throw error;
  }
  db.exec("ROLLBACK");
  throw new MarkerCommitsAlone();
}

async function marked(id: string, isTaken: Test, insert: () => Promise<unknown>): Promise<void> {
  try {
    await insert();
  } catch (error) {
    throw isTaken(error) ? new Fenced(id, error) : error;
  }
}

/** The outcome in the row, or in the fence that is inserted where there is none. */
async function decided(statements: {
  read: () => Promise<unknown>;
  fence: () => Promise<unknown>;
  isConflict: Test;
}): Promise<Outcome> {
  for (let tries = 1; ; tries++) {
    try {
      let row = await statements.read();
      if (!row) {
        await statements.fence();
        row = await statements.read();
      }
      return outcomeOf(row);
    } catch (error) {
      if (tries === TRIES || !statements.isConflict(error)) throw error;
    }
  }
}

function outcomeOf(row: unknown): Outcome {
  const { outcome } = (row ?? {}) as { outcome?: unknown };
  if (outcome !== "commit" && outcome !== "rollback") throw new Error("the marker has no outcome");
  return outcome;
}

function prunedBefore(olderThanMs: number): number {
  if (!(olderThanMs >= CHECK_HORIZON_MS)) {
    throw new RangeError(`rows younger than ${CHECK_HORIZON_MS} ms are needed: a check may come`);
  }
  return Date.now() - olderThanMs;
}

function names({ table = TABLE }: MarkerOptions): Record<"table" | "index" | "columns", string> {
  if (!/^[A-Za-z_]\w{0,55}(\.[A-Za-z_]\w{0,55})?$/.test(table)) {
    throw new TypeError(`${table} is not the plain name of a table`);
  }
  const columns = "(transaction_id, outcome, written_at_ms)";
  return { table, index: `${table.split(".").at(-1)}_written_at`, columns };
}
