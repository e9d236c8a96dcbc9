/**
 * Copies the rows of all tables and compares the two databases afterwards, row by row, by a hash of each table.
 *
 * The rows of an earlier run are deleted first: its origin may have gone on since. Rows are small beside blobs. No server
 * may use either database meanwhile, so every lease is over and every request that holds a key has come to nothing.
 */
import { createHash } from "node:crypto";
import { COPIED_TABLES, type CopiedTable, type CopyStore, type Row } from "../store/copying.ts";
import { count } from "../words.ts";

const PAGE = 500;

/** Yields pages of rows. */
export async function* pagesOf(store: CopyStore, table: CopiedTable): AsyncGenerator<Row[]> {
  for (let after = 0; ; ) {
    const rows = await store.readRows(table, after, PAGE);
    const last = rows.at(-1);
    if (last === undefined) return;
    yield rows;
    after = last.sequence;
  }
}

export type CopiedRows =
  | { readonly ok: true; readonly counts: Readonly<Record<CopiedTable, number>> }
  | { readonly ok: false; readonly problem: string };

export async function copyRows(
  source: CopyStore,
  target: CopyStore,
  say: (line: string) => void,
): Promise<CopiedRows> {
  const counts: [CopiedTable, number][] = [];
  await target.deleteRows();
  for (const table of COPIED_TABLES) {
    const sent = new TableDigest();
    for await (const page of pagesOf(source, table)) {
      const rows = page
        .filter((row) => isKept(table, row))
        .map(withoutLease)
        .map(withoutPartSums);
      if (rows.length > 0) await target.insertRows(table, rows);
      sent.add(rows);
    }
    const found = new TableDigest();
    for await (const page of pagesOf(target, table)) found.add(page);
    if (!found.equals(sent)) {
      const problem = `the rows of ${wordsOf(table)} in the target differ from those in the source (${found.count} and ${sent.count})`;
      return { ok: false, problem };
    }
    counts.push([table, sent.count]);
    say(`rows: ${wordsOf(table)} ${count(sent.count)}, the same in both`);
  }
  await target.setCounters(await source.readCounters());
  return { ok: true, counts: Object.fromEntries(counts) as Record<CopiedTable, number> };
}

const wordsOf = (table: CopiedTable): string =>
  table.replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);

/** A key without an answer belongs to a request that came to nothing. */
const isKept = (table: CopiedTable, row: Row): boolean =>
  table !== "idempotencyKeys" || row["answer"] !== null;

/** The epoch of a lease stays, so that the next holder differs from all former ones. */
function withoutLease(row: Row): Row {
  if (!("leaseOwner" in row)) return row;
  return { ...row, leaseOwner: null, leaseExpiresAtMs: null };
}

/** The parts are copied after their upload, and add themselves up again. */
const withoutPartSums = (row: Row): Row =>
  "partCount" in row ? { ...row, partCount: 0, partBytes: 0 } : row;

class TableDigest {
  readonly #hash = createHash("sha256");
  count = 0;

  add(rows: readonly Row[]): void {
    for (const row of rows) this.#hash.update(canonicalText(row));
    this.count += rows.length;
  }

  /** Ends both digests. */
  equals(other: TableDigest): boolean {
    return this.count === other.count && this.#hash.digest().equals(other.#hash.digest());
  }
}

/** The columns come in the order of their names. PostgreSQL stores no NUL in a text (`store/postgres/columns.ts`). */
function canonicalText(row: Row): string {
  const columns = Object.keys(row).toSorted();
  return JSON.stringify(
    columns.map((name) => {
      const value = row[name];
      return [name, typeof value === "string" ? value.replaceAll("\0", "\ufffd") : value];
    }),
  );
}
