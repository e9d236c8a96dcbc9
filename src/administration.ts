/**
 * Opens the database of a configuration for one command of an operator. Such a command needs no key, because its user can
 * open the database anyway; so it can make the first one. On SQLite it works beside a running server: see
 * `openBesideServer`.
 */
import { resolve } from "node:path";
import { Keys } from "./api/keys.ts";
import type { Clock } from "./clock.ts";
import { Closers } from "./closers.ts";
import type { Config } from "./config/schema.ts";
import { openBesideServer } from "./database.ts";
import { openStorage } from "./storage.ts";
import { createLog } from "./telemetry/log.ts";

export interface Administration {
  readonly keys: Keys;
  readonly clock: Clock;
}

/** Resolves to the exit code of the command, or to the reason for which it could not begin. */
export async function administer(
  config: Config,
  clock: Clock,
  act: (administration: Administration) => Promise<number>,
): Promise<number | { readonly problem: string }> {
  const closers = new Closers();
  const deps = { clock, closers };
  try {
    const opened =
      (await openBesideServer(resolve(config.data_dir), config, deps)) ??
      (await openStorage(config, deps));
    if (!opened.ok) return { problem: opened.problem };
    // The output of a command says what it did. Servers find out by themselves.
    const keys = new Keys({
      ...{ store: opened.store, clock, log: createLog("silent") },
      refresh: async () => {},
    });
    return await act({ keys, clock });
  } finally {
    await closers.closeAll();
  }
}
