import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import Database from "better-sqlite3";
import { FakeClock } from "./fake-clock.ts";
import { chatLines, startTestService } from "./service.ts";
import { startUpstream } from "./upstream.ts";

/** A service whose clock stands still, with a batch of so many lines. A model server has them all, and answers none. */
export async function startHeldBatch(lineCount: number) {
  const clock = new FakeClock();
  const upstream = await startUpstream();
  const service = await startTestService({ clock, upstreamUrl: upstream.url });
  upstream.hold();
  const { id, input_file_id: input } = await service.submit(chatLines(lineCount));
  await upstream.reached(lineCount);
  return {
    clock,
    upstream,
    service,
    id,
    input,
    [Symbol.asyncDispose]: async () => {
      await service[Symbol.asyncDispose]();
      await upstream[Symbol.asyncDispose]();
    },
  };
}

/** Lets the lines of a held batch end, and locks the database before their results are published. Returns what unlocks it. */
export async function lockBeforeResults({
  upstream,
  service,
  id,
}: Awaited<ReturnType<typeof startHeldBatch>>): Promise<() => void> {
  const other = new Database(join(service.dataDir, "batchd.sqlite"));
  const finalizer = other
    .prepare("select lease_owner from batches where id = ? and status = 'finalizing'")
    .pluck();
  upstream.release();
  // Between its claim and its commit the finalizer waits for the disk several times.
  while ((finalizer.get(id) ?? null) === null) await setImmediate();
  other.exec("begin immediate");
  await service.events.reached("results.commit_failed", { batch: id });
  return () => other.close();
}
