/**
 * The command `batchd migrate-to`: opens two installations, copies one to the other, and prints what it does. It must
 * never serve either of them.
 */
import { join, resolve } from "node:path";
import type { Clock } from "../clock.ts";
import { Closers } from "../closers.ts";
import type { Config } from "../config/schema.ts";
import { moveInstallation, type Side } from "../moving/move.ts";
import { BLOBS } from "../runtime/storage/data-folder.ts";
import type { Refusal } from "../runtime/storage/database.ts";
import { openForCopying } from "../runtime/storage/storage.ts";

export interface MigrationDeps {
  readonly clock: Clock;
  readonly say: (line: string) => void;
  readonly warn: (line: string) => void;
}

/** Returns the reason for which the target is not a copy of the source, or null. */
export async function migrateTo(
  from: Config,
  to: Config,
  deps: MigrationDeps,
): Promise<string | null> {
  const [source, target] = [placesOf(from), placesOf(to)];
  if (source.database === target.database) return `both sides name ${source.database}`;
  if (source.files === target.files) return `both sides keep files in ${source.files}`;
  deps.say(`from: ${source.database}, files in ${source.files}`);
  deps.say(`to: ${target.database}, files in ${target.files}`);
  const closers = new Closers();
  try {
    const opened = await openBoth(from, to, { clock: deps.clock, closers });
    if (!opened.ok) return opened.problem;
    return await moveInstallation({
      source: { ...opened.source, name: source.database },
      target: { ...opened.target, name: target.database },
      ...deps,
    });
  } finally {
    await closers.closeAll();
  }
}

type OpenedSide = Omit<Side, "name">;

async function openBoth(
  from: Config,
  to: Config,
  deps: { readonly clock: Clock; readonly closers: Closers },
): Promise<{ ok: true; source: OpenedSide; target: OpenedSide } | Refusal> {
  const source = await openForCopying(from, { ...deps, purpose: "copy from" });
  if (!source.ok) return { ok: false, problem: `the source: ${source.problem}` };
  const target = await openForCopying(to, { ...deps, purpose: "copy to" });
  if (!target.ok) return { ok: false, problem: `the target: ${target.problem}` };
  return { ok: true, source, target };
}

/** Returns names without secrets. Two sides with one name are the same place. */
function placesOf({ data_dir: dir, database_url: url, storage }: Config) {
  const { type, bucket, prefix, endpoint } = storage;
  const at = endpoint === undefined ? "" : ` at ${new URL(endpoint).host}`;
  return {
    database: url === undefined ? `SQLite in ${resolve(dir)}` : `PostgreSQL at ${addressOf(url)}`,
    files: type === "s3" ? `s3://${bucket}/${prefix}${at}` : join(resolve(dir), BLOBS),
  };
}

function addressOf(url: string): string {
  const { host, pathname } = new URL(url);
  return `${host}${pathname}`;
}
