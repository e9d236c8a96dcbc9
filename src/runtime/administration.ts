/**
 * Opens the database of a configuration for one command of an operator. Such a command needs no key, because its user can
 * open the database anyway; so it can make the first one. On SQLite it works beside a running server: see
 * `openBesideServer`.
 */
import { resolve } from "node:path";
import { Keys } from "../api/keys.ts";
import type { Projects } from "../api/projects.ts";
import { BlobIntents } from "../blobs/blob-intents.ts";
import { type Clock, clockWithDates } from "../clock.ts";
import { Closers } from "../closers.ts";
import type { Config } from "../config/schema.ts";
import { purgeOnce } from "../engine/housekeeping/purging.ts";
import { createLog } from "../telemetry/log.ts";
import { newProjects } from "./parts.ts";
import { hasDatabase, openBesideServer } from "./storage/databases.ts";
import { openStorage, openWithoutFiles } from "./storage/storage.ts";

export interface Administration {
  readonly keys: Keys;
  readonly projects: Projects;
  /** Removes what is left of a deleted project; resolves to the number of things that are left. A server may have to go on. */
  readonly purge: (project: string) => Promise<number>;
  readonly clock: Clock;
  /** The folder in which the command has made a new database; null where there may have been one. */
  readonly begunIn: string | null;
}

export interface AdministerOptions {
  readonly clock: Clock;
  /** Whether the command may make a new database. */
  readonly mayBegin: boolean;
  /** Whether the command works on files, too. Any other must not depend on them: a key is revoked also where they are away. */
  readonly needsFiles: boolean;
}

/** Resolves to the exit code of the command, or to the reason for which it could not begin. */
export async function administer(
  config: Config,
  { clock, mayBegin, needsFiles }: AdministerOptions,
  act: (administration: Administration) => Promise<number>,
): Promise<number | { readonly problem: string }> {
  const closers = new Closers();
  const deps = { clock, closers };
  const dir = resolve(config.data_dir);
  const begunIn = hasDatabase(dir, config) ? null : dir;
  if (begunIn !== null && !mayBegin) return { problem: nothingIn(dir) };
  try {
    const beside = await openBesideServer(dir, config, deps);
    const alone = beside ?? (needsFiles ? null : await openWithoutFiles(config, deps));
    const storage = alone === null ? await openStorage(config, deps) : null;
    const opened = alone ?? storage;
    if (opened === null || !opened.ok) return { problem: opened?.problem ?? "" };
    const { store } = opened;
    // A key ends by the clock of the store, and this machine may be any. A database that is away fails the command itself.
    const dateMs = await store.readDateMs().catch(() => clock.nowMs());
    const aheadMs = dateMs - clock.nowMs();
    const storeClock = clockWithDates(clock, () => clock.nowMs() + aheadMs);
    // The output of a command says what it did. Servers find out by themselves.
    const log = createLog("silent");
    const keys = new Keys({ store, clock: storeClock, log, onChanged: async () => {} });
    const projects = newProjects({ store, clock: storeClock, log, configNow: () => config });
    const purge = (project: string) => {
      if (!storage?.ok) return store.purgeProject(project);
      const intents = new BlobIntents({ ...storage, log });
      return purgeOnce(project, { ...storage, clock, log, intents, isDraining: () => false });
    };
    return await act({ keys, projects, purge, clock: storeClock, begunIn });
  } finally {
    await closers.closeAll();
  }
}

const nothingIn = (dir: string) =>
  `no server has used ${dir} yet: name the folder of the server with --data-dir, or its configuration with --config`;
