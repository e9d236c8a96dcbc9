/**
 * `npm run chaos`: kills every process of a fleet ten times, lets it stand still beyond its leases twice, restarts PostgreSQL
 * twice and overloads the bucket for a minute while twenty batches go through. It takes some eight minutes. `--seed N` repeats an
 * order of events, and `--small` makes the run of `npm test`.
 *
 * `npm run upgrade -- REF`: starts a fleet of the version that git knows as REF, and replaces its servers one by one by those of
 * this checkout while batches go through.
 *
 * `--logs DIR` keeps the logs of the servers. The exit code is 1 when anything does not hold.
 */
import { mkdirSync } from "node:fs";
import { startPostgres } from "../support/postgres.ts";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { scriptOptions } from "../support/script-options.ts";
import { runChaos } from "./chaos.ts";
import { FULL, SMALL, UPGRADE } from "./sizes.ts";
import { checkOut } from "./upgrade.ts";

/** Rejects at Ctrl-C, so that everything that was started ends as it does after the run. */
const interrupted = new Promise<never>((_, reject) => {
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => reject(INTERRUPTED));
});
interrupted.catch(() => {});
const INTERRUPTED = new Error("interrupted");

const USAGE = `npm run chaos -- [--seed N] [--small] [--logs DIR]
npm run upgrade -- REF [--logs DIR]`;

const { values } = scriptOptions(USAGE, {
  options: {
    from: { type: "string" },
    seed: { type: "string", default: String(Date.now() % 100_000) },
    logs: { type: "string" },
    small: { type: "boolean", default: false },
  },
});

function sizes() {
  if (values.from !== undefined) return UPGRADE;
  return values.small ? SMALL : FULL;
}

async function main(): Promise<void> {
  await using postgres = await startPostgres("the chaos run");
  if (postgres === null || postgres.server === null || !hasS3Server()) {
    process.stderr.write("The run needs a PostgreSQL that it may restart, and the S3 server.\n");
    process.exitCode = 1;
    return;
  }
  using older = values.from === undefined ? null : checkOut(values.from);
  await using s3 = await startS3Server();
  const seed = Number(values.seed);
  if (values.logs !== undefined) mkdirSync(values.logs, { recursive: true });
  const startedAtMs = performance.now();
  const say = (text: string) => {
    const seconds = ((performance.now() - startedAtMs) / 1000).toFixed(0);
    process.stderr.write(`${seconds.padStart(5)} s  ${text}\n`);
  };
  say(older === null ? `seed ${seed}` : `from ${values.from}`);
  const report = await runChaos({
    seed,
    postgres,
    s3,
    say,
    interrupted,
    sizes: sizes(),
    ...(values.logs !== undefined && { logsDir: values.logs }),
    ...(older !== null && { olderScript: older.script }),
  });
  process.stdout.write(`${JSON.stringify(report, null, 2)}\n`);
  if (report.faults.length > 0) process.exitCode = 1;
}

await main().catch((error: unknown) => {
  if (error !== INTERRUPTED) throw error;
  // Clients and trouble of the run have nothing left to talk to.
  process.exit(130);
});
