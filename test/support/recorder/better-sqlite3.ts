/**
 * Records the statements of `better-sqlite3`, and the safety of each commit. Only the connection knows that setting, so
 * the recorder reads it back after every statement that may have changed it. `preload.ts` puts this module in place.
 */
import Real from "better-sqlite3";
import { record } from "./record.ts";

const READS = /^\s*(?:select|pragma|explain)\b/i;
const ENDS_OF_TRANSACTIONS = /^(?:begin|commit|rollback)\b/i;
const RUNS = ["run", "get", "all", "iterate"] as const;

class Recorded extends Real {
  #settings = { synchronous: -1, journalMode: "" };

  constructor(path: string, options: Real.Options = {}) {
    let self: Recorded | null = null;
    // SQLite reports only the first bytes of each value for other statements.
    const verbose = (sql: unknown) => {
      if (self !== null && ENDS_OF_TRANSACTIONS.test(String(sql))) self.#record(String(sql), []);
    };
    super(path, { ...options, verbose });
    self = this;
    this.#readSettings();
  }

  override prepare<B extends unknown[] | object = unknown[], R = unknown>(source: string) {
    const statement = super.prepare<B, R>(source);
    if (READS.test(source)) return statement;
    for (const name of RUNS) {
      const run = statement[name].bind(statement) as (...values: unknown[]) => unknown;
      const recorded = (...values: unknown[]) => {
        this.#record(source, values);
        return run(...values);
      };
      Object.defineProperty(statement, name, { value: recorded });
    }
    return statement;
  }

  override pragma(source: string, options?: Real.PragmaOptions): unknown {
    const answer = super.pragma(source, options);
    this.#readSettings();
    return answer;
  }

  override exec(source: string): this {
    super.exec(source);
    this.#readSettings();
    return this;
  }

  #record(sql: string, values: readonly unknown[]): void {
    const { inTransaction, name } = this;
    record({ step: "sql", database: name, sql, values, inTransaction, ...this.#settings });
  }

  #readSettings(): void {
    this.#settings = {
      synchronous: Number(super.pragma("synchronous", { simple: true })),
      journalMode: String(super.pragma("journal_mode", { simple: true })),
    };
  }
}

export default Recorded;
