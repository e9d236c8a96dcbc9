/**
 * A fleet on a real PostgreSQL and a real S3 server works through batches and delivers their results while every process is
 * killed again and again or stands still beyond its leases, the database restarts, and the bucket is overloaded. Some requests to the bucket and to the model
 * server go wrong all the time.
 *
 * The run shows the promise of a fleet as a whole: no line is lost or doubled, no operator has to do anything, and the
 * limits of an upstream hold. The seed decides the order of events, but not what each process is doing at that moment.
 */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Client } from "pg";
import { endJournals } from "../support/end-leases.ts";
import type { TestPostgres } from "../support/postgres.ts";
import { type S3Proxy, startS3Proxy } from "../support/s3-proxy.ts";
import type { S3Server } from "../support/s3-server.ts";
import { seededRandom } from "../support/seeded-random.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { Clients } from "./clients.ts";
import { questionsOf } from "./lines.ts";
import { ModelServer } from "./model-server.ts";
import { Places } from "./places.ts";
import type { Sizes } from "./sizes.ts";
import { type Command, Supervised } from "./supervised.ts";
import { makeTrouble } from "./trouble.ts";
import { replaceEach } from "./upgrade.ts";
import { type Ended, faultsOfBatch, faultsOfLimits } from "./verdict.ts";

const LEASE_SECONDS = 5;
/** Batches begin to come at once, and the last one comes before the last events. */
const SUBMITTED_BY = 0.8;
/** The part of the requests to the bucket that go wrong. */
const UNRELIABLE_PART = 0.03;
/** The journals of final batches are removed by then: a sweep begins every minute. */
const TIDY_WITHIN_MS = 180_000;

export interface ChaosOptions {
  readonly sizes: Sizes;
  readonly seed: number;
  readonly postgres: TestPostgres;
  readonly s3: S3Server;
  readonly say: (text: string) => void;
  /** Rejects when the run is to end before its time. */
  readonly interrupted?: Promise<never>;
  /** The folder for the logs of the servers. */
  readonly logsDir?: string;
  /** The main file of an older version. Its servers begin, and are replaced one by one in the place of all other trouble. */
  readonly olderScript?: string;
}

export interface ChaosReport {
  /** What does not hold, each as a sentence. */
  readonly faults: readonly string[];
  readonly kills: Readonly<Record<string, number>>;
  readonly lineCount: number;
  readonly requestCount: number;
  /** The answers that the model server spoilt. */
  readonly faultyAnswers: number;
  readonly maxInFlight: number;
  readonly maxPerMinute: number;
  readonly repeatedByClients: number;
  /** The warnings and errors in the logs of the servers, with their number. */
  readonly complaints: Readonly<Record<string, number>>;
  readonly tookMs: number;
}

export async function runChaos(options: ChaosOptions): Promise<ChaosReport> {
  const { sizes, seed, postgres, s3, say } = options;
  const startedAtMs = performance.now();
  const random = seededRandom(seed);
  await using model = await ModelServer.start(sizes, random);
  await using proxy = await startS3Proxy(s3.url);
  const unreliable = { kind: "unreliable", part: UNRELIABLE_PART, random } as const;
  proxy.trouble = unreliable;
  using folder = temporaryFolder("batchd-chaos-");
  const databaseUrl = await postgres.createDatabase();
  await using fleet = new AsyncDisposableStack();
  const places = new Places(folder.path, s3, proxy.url);
  const place = { folder: folder.path, databaseUrl, model, places };
  const commands = commandsFor(options, place, proxy);
  const processes = commands.map((each) =>
    fleet.use(new Supervised(olderOf(each, options.olderScript))),
  );
  const servers = processes.slice(0, sizes.apiCount);
  const clients = new Clients({ sizes, servers, keyOf });
  const progress = new Progress();
  const onProgress = (part: number) => progress.reach(part);
  const trouble =
    options.olderScript !== undefined
      ? replaceEach({ processes, commands, model, say }, onProgress)
      : makeTrouble(
          {
            sizes,
            seed,
            processes,
            say,
            restartDatabase: async () => {
              await postgres.server?.stop("immediate");
              await postgres.server?.start();
            },
            setBucket: (state) => {
              proxy.trouble = state === "well" ? unreliable : { kind: state };
            },
          },
          onProgress,
        );
  const running = Promise.all([submitAll(clients, sizes, progress), trouble]);
  const [ended] = await Promise.race([
    running,
    ...(options.interrupted ? [options.interrupted] : []),
  ]);
  say(`all ${ended.length} batches are final`);
  const verdict = { clients, sizes, places };
  const faults = [
    ...(await Promise.all(ended.map((each) => faultsOfBatch(each, verdict)))).flat(),
    ...places.faultsBeside(ended.map(({ batch }) => batch.id)),
    ...(await faultsOfLists(clients, sizes, ended)),
    ...faultsOfLimits(model, sizes),
    ...(await leftovers(databaseUrl)),
    ...processes.flatMap(({ crashes }) => crashes),
    ...clients.faults.map((fault) => `a client got ${fault}`),
  ];
  await fleet.disposeAsync();
  return {
    faults,
    kills: Object.fromEntries(processes.map(({ name, killCount }) => [name, killCount])),
    lineCount: countLines(sizes),
    requestCount: model.requestCount,
    faultyAnswers: model.faultCount,
    maxInFlight: model.maxInFlight,
    maxPerMinute: model.maxPerMinute,
    repeatedByClients: clients.repeatCount,
    complaints: complaintsOf(processes),
    tookMs: performance.now() - startedAtMs,
  };
}

/** Tells how much of the trouble has happened. */
class Progress {
  #part = 0;
  readonly #waiting = new Set<() => void>();

  reach(part: number): void {
    this.#part = part;
    for (const check of this.#waiting) check();
  }

  async reached(part: number): Promise<void> {
    while (this.#part < part) {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#waiting.add(resolve);
      await promise;
      this.#waiting.delete(resolve);
    }
  }
}

/** The number of lines that have to be sent. */
const countLines = (sizes: Sizes): number =>
  Array.from({ length: sizes.batchCount }, (_, n) => questionsOf(n, sizes).length).reduce(
    (sum, count) => sum + count,
  );

const keyOf = (project: number) => `chaos-key-of-project-${project}`;

interface Place {
  readonly folder: string;
  readonly databaseUrl: string;
  readonly model: ModelServer;
  readonly places: Places;
}

/** The API servers come first. */
function commandsFor(
  { sizes, s3, logsDir }: ChaosOptions,
  place: Place,
  proxy: S3Proxy,
): Command[] {
  const { folder, databaseUrl, model, places } = place;
  const storage = s3.storage({ endpoint: proxy.url, prefix: `chaos-${Date.now()}/` });
  const upstream = { base_url: model.url, interactive_reserve: 0 };
  const { maxConcurrency, requestsPerMinute } = sizes;
  const upstreams = [
    // Without the learning, nothing but the limit holds requests back.
    {
      ...upstream,
      name: "in-flight",
      models: ["in-flight"],
      max_concurrency: maxConcurrency,
      min_concurrency: maxConcurrency,
    },
    {
      ...upstream,
      name: "per-minute",
      models: ["per-minute"],
      max_concurrency: 64,
      requests_per_minute: requestsPerMinute,
    },
  ];
  const projects = Array.from({ length: sizes.projectCount }, (_, i) => i);
  const keys = projects.map((n) => ({ name: `key-${n}`, key: keyOf(n), project: `project-${n}` }));
  const path = join(folder, "batchd.yaml");
  const engine = { lease_seconds: LEASE_SECONDS };
  const config = {
    server: { port: 0 },
    data_dir: join(folder, "data"),
    storage,
    engine,
    auth: { keys },
    upstreams,
  };
  // JSON is YAML too.
  writeFileSync(olderConfig(path), JSON.stringify(config));
  writeFileSync(path, JSON.stringify({ ...config, locations: places.locations }));
  const command = (role: string, n: number) => ({
    name: `${role} ${n}`,
    config: path,
    args: ["serve", "--role", role],
    env: { BATCHD_DATABASE_URL: databaseUrl },
    ...(logsDir !== undefined && { logPath: join(logsDir, `${role}-${n}.log`) }),
  });
  return [
    ...Array.from({ length: sizes.apiCount }, (_, i) => command("api", i + 1)),
    ...Array.from({ length: sizes.workerCount }, (_, i) => command("worker", i + 1)),
  ];
}

/** Older versions know fewer keys. */
const olderConfig = (path: string) => path.replace(/\.yaml$/, "-older.yaml");

const olderOf = (command: Command, script: string | undefined): Command =>
  script === undefined ? command : { ...command, script, config: olderConfig(command.config) };

/** Submits each batch when its time has come, and waits for its end. */
function submitAll(clients: Clients, sizes: Sizes, progress: Progress): Promise<Ended[]> {
  const { batchCount } = sizes;
  return Promise.all(
    Array.from({ length: batchCount }, async (_, number) => {
      await progress.reached((SUBMITTED_BY * number) / batchCount);
      const id = await clients.submit(number);
      return { number, batch: await clients.ended(number, id) };
    }),
  );
}

/** A request that was repeated must not make a second batch. */
async function faultsOfLists(clients: Clients, sizes: Sizes, ended: readonly Ended[]) {
  const faults: string[] = [];
  for (let project = 0; project < sizes.projectCount; project++) {
    const own = ended.filter(({ number }) => number % sizes.projectCount === project);
    const expected = own.map(({ batch }) => batch.id).sort();
    const found = (await clients.list(project)).sort();
    if (String(found) === String(expected)) continue;
    faults.push(`project ${project} has ${found.length} batches instead of ${expected.length}`);
  }
  return faults;
}

/** Returns what a final batch leaves behind in the database for longer than the sweep needs. */
async function leftovers(databaseUrl: string): Promise<string[]> {
  await endJournals(databaseUrl);
  const client = new Client(databaseUrl);
  await client.connect();
  let found: Record<string, string> = {};
  for (const startedAtMs = performance.now(); ; await delay(500)) {
    const { rows } = await client.query(
      `select (select count(*) from segments) as segments, (select count(*) from chunks) as chunks,
        (select count(*) from batches where lease_owner is not null) as leases,
        (select count(*) from batch_deliveries where status = 'pending') as deliveries`,
    );
    found = rows[0] as Record<string, string>;
    const isTidy = Object.values(found).every((count) => count === "0");
    if (isTidy || performance.now() - startedAtMs > TIDY_WITHIN_MS) break;
  }
  await client.end();
  return Object.entries(found)
    .filter(([, count]) => count !== "0")
    .map(([what, count]) => `${count} ${what} are left in the database`);
}

function complaintsOf(processes: readonly Supervised[]): Record<string, number> {
  const all: Record<string, number> = {};
  for (const { complaints } of processes) {
    for (const [name, count] of complaints) all[name] = (all[name] ?? 0) + count;
  }
  return all;
}
