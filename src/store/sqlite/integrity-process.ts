/**
 * The process that looks for damage in the database at the path of its argument. It writes what it finds to standard output, and
 * nothing if it cannot tell. It has a connection of its own, since the one of the server may have kept what it read.
 */
import Database from "better-sqlite3";

/** A file that is sound, or that the disk fails to read, is `readable`. */
export type Finding = "damaged" | "readable";

/** What the check says of a page that it could not read. */
const UNREADABLE = /unable to get the page\. error code=(\d+)/;
/** The last byte of the number of every error of a disk. */
const IOERR = 10;

function look(path: string): Finding | null {
  try {
    const database = new Database(path, { readonly: true });
    const found = String(database.pragma("integrity_check(1)", { simple: true }));
    const isFailedRead = (Number(UNREADABLE.exec(found)?.[1]) & 0xff) === IOERR;
    return found === "ok" || isFailedRead ? "readable" : "damaged";
  } catch (thrown) {
    const code = thrown instanceof Database.SqliteError ? thrown.code : "";
    if (/^SQLITE_(?:CORRUPT|NOTADB)/.test(code)) return "damaged";
    return code.startsWith("SQLITE_IOERR") ? "readable" : null;
  }
}

process.stdout.write(look(process.argv[2] ?? "") ?? "");
