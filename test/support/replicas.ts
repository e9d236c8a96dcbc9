/**
 * Two whole servers on one database file and one folder of blobs, each with its own connection and clock. A clock
 * stands still until a test moves it. A replica whose clock stands still is a machine that pauses. A replica whose
 * clock passes the lease takes over the work of the other.
 */
import { join } from "node:path";
import { openDiskBlobs } from "../../src/blobs/disk.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { Metrics } from "../../src/telemetry/metrics.ts";
import { dataRoot } from "./data-root.ts";
import { FakeClock } from "./fake-clock.ts";
import { GatedBlobs } from "./gated-blobs.ts";
import { Scrape } from "./prometheus.ts";
import { type ServiceOptions, startTestService, type TestService } from "./service.ts";
import { temporaryFolder } from "./store-builders.ts";

/** The time without a renewal after which another replica may take over. */
export const LEASE_OVER_MS = 31_000;
/** The interval at which a replica renews its leases. */
export const HEARTBEAT_MS = 10_000;

export interface Replica {
  readonly service: TestService;
  readonly clock: FakeClock;
  readonly blobs: GatedBlobs;
  /** Resolves to the number of leases that another replica has taken. */
  lostLeases(kind: "batch" | "chunk"): Promise<number>;
}

export interface Replicas extends AsyncDisposable {
  readonly a: Replica;
  readonly b: Replica;
  readonly dataDir: string;
}

type Options = Omit<ServiceOptions, "clock" | "dataDir" | "openStorage" | "metrics">;

export async function startReplicas(options: Options = {}): Promise<Replicas> {
  const dir = temporaryFolder("batchd-replicas-", dataRoot());
  const blobs = await openDiskBlobs(join(dir.path, "blobs"));
  // Both are opened before either starts, because an opening releases all leases, as a lone owner of the folder may.
  const parts = [await partsOf(dir.path, blobs), await partsOf(dir.path, blobs)] as const;
  const start = (part: (typeof parts)[number]) => startReplica(part, dir.path, options);
  const [a, b] = [await start(parts[0]), await start(parts[1])];
  return {
    a,
    b,
    dataDir: dir.path,
    async [Symbol.asyncDispose]() {
      for (const { blobs, service } of [a, b]) {
        blobs.puts.open();
        blobs.reads.open();
        await service[Symbol.asyncDispose]();
      }
      dir[Symbol.dispose]();
    },
  };
}

async function partsOf(dataDir: string, blobs: Awaited<ReturnType<typeof openDiskBlobs>>) {
  const clock = new FakeClock();
  const opened = await openSqliteStore({ path: join(dataDir, "batchd.sqlite"), clock });
  if (!opened.ok) throw new Error(opened.problem);
  return { store: opened.store, blobs: new GatedBlobs(blobs), clock };
}

async function startReplica(
  { store, blobs, clock }: Awaited<ReturnType<typeof partsOf>>,
  dataDir: string,
  options: Options,
): Promise<Replica> {
  const metrics = new Metrics();
  const service = await startTestService({
    ...options,
    // A failed test must not wait for the end of a grace period, because the clock stands still.
    config: { engine: { stop_grace_seconds: 0, drain_grace_seconds: 0 }, ...options.config },
    dataDir,
    clock,
    metrics,
    openStorage: async (_config, { closers }) => {
      closers.add("store", () => store.close());
      return { ok: true, store, blobs };
    },
  });
  const lostLeases = async (kind: "batch" | "chunk") => {
    const text = await (await fetch(`${service.url}/metrics`)).text();
    return new Scrape(text).value("batchd_lease_changes_total", { kind, change: "lost" });
  };
  return { service, clock, blobs, lostLeases };
}
