import { createPool } from "mysql2/promise";
import sqlite from "node-sqlite3-wasm";
import pg from "pg";
import {
  type MarkerStore,
  mysqlMarkers,
  pgMarkers,
  type SqliteDatabase,
  sqliteMarkers,
} from "../../src/index.js";
import { unique } from "./support.js";

/** A database of a producer, with its markers. */
export interface Database {
  markers: MarkerStore<any>;
  /** Do two transactions wait for each other, instead of one that fails? */
  waits: boolean;
  transaction(work: (db: any) => Promise<void>): Promise<void>;
  /** Do the work without a transaction. */
  alone(work: (db: any) => Promise<void>): Promise<void>;
  /** The outcome in the row of a transaction. */
  row(id: string): Promise<unknown>;
  /** Make a row of this age. */
  insert(id: string, writtenAtMs: number): Promise<void>;
  close(): Promise<void>;
}

/** One table for a test and the programs that it starts. */
export const table = process.env["MARKERS"] ?? unique("markers").replaceAll("-", "_");
const SELECT = `SELECT outcome FROM ${table} WHERE transaction_id =`;
const INSERT = `INSERT INTO ${table} VALUES`;

/** `DATABASES` of the environment names those that can be had. */
export const databases: Record<string, () => Promise<Database>> = {
  sqlite: async () => {
    const path = process.env["SQLITE_PATH"] ?? "";
    const work = new sqlite.Database(path);
    const own = new sqlite.Database(path);
    const sync = sqliteMarkers(asDriver(own), { table });
    // For the tests of all databases, whose transactions are awaited.
    const mark = async (db: SqliteDatabase, id: string): Promise<void> => sync.markSync(db, id);
    const markers = { ...sync, mark };
    await markers.create();
    return {
      markers,
      waits: false,
      async transaction(run) {
        work.exec("BEGIN IMMEDIATE");
        try {
          await run(asDriver(work));
          work.exec("COMMIT");
        } catch (error) {
          work.exec("ROLLBACK");
          throw error;
        }
      },
      alone: (run) => run(asDriver(work)),
      row: async (id) => own.get(`${SELECT} ?`, [id])?.["outcome"],
      insert: async (id, at) => void own.run(`${INSERT} (?, 'commit', ?)`, [id, at]),
      async close() {
        work.close();
        own.close();
      },
    };
  },
  postgresql: async () => {
    const pool = new pg.Pool(); // by PGHOST, PGUSER and PGDATABASE
    const markers = pgMarkers(pool, { table });
    await markers.create();
    return {
      markers,
      waits: true,
      async transaction(run) {
        const db = await pool.connect();
        try {
          await db.query("BEGIN");
          await run(db);
          await db.query("COMMIT");
        } catch (error) {
          await db.query("ROLLBACK");
          throw error;
        } finally {
          db.release();
        }
      },
      async alone(run) {
        const db = await pool.connect();
        await run(db).finally(() => db.release());
      },
      row: async (id) => (await pool.query(`${SELECT} $1`, [id])).rows[0]?.outcome,
      insert: async (id, at) => void (await pool.query(`${INSERT} ($1, 'commit', $2)`, [id, at])),
      close: () => pool.end(),
    };
  },
  mysql: async () => {
    const pool = createPool({
      socketPath: process.env["MYSQL_SOCKET"] ?? "",
      user: "root",
      database: process.env["MYSQL_DATABASE"] ?? "",
    });
    const markers = mysqlMarkers(pool, { table });
    await markers.create();
    return {
      markers,
      waits: true,
      async transaction(run) {
        const db = await pool.getConnection();
        try {
          await db.beginTransaction();
          await run(db);
          await db.commit();
        } catch (error) {
          await db.rollback();
          throw error;
        } finally {
          db.release();
        }
      },
      async alone(run) {
        const db = await pool.getConnection();
        await run(db).finally(() => db.release());
      },
      row: async (id) => ((await pool.query(`${SELECT} ?`, [id]))[0] as any)[0]?.outcome,
      insert: async (id, at) => void (await pool.query(`${INSERT} (?, 'commit', ?)`, [id, at])),
      close: () => pool.end(),
    };
  },
};

export const available = (process.env["DATABASES"] ?? "").split(" ").filter(Boolean);

/** The shape of better-sqlite3 and node:sqlite, by a driver that needs nothing compiled. */
function asDriver(db: sqlite.Database): SqliteDatabase {
  return {
    exec: (sql) => db.exec(sql),
    prepare: (sql) => ({
      run: (...values) => db.run(sql, values),
      get: (...values) => db.get(sql, values) ?? undefined,
    }),
  };
}
