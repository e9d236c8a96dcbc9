/**
 * Sends thousands of broken requests to a server of its own, and checks the state of the server afterwards.
 *
 * Request number N of a seed is always the same, so a failure can be repeated: `npm run conformance -- --only 14 --seed
 * S`.
 */
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { SCOPES } from "../src/contract/scope.ts";
import { dataRoot } from "../test/support/data-root.ts";
import { entriesBelow } from "../test/support/files-below.ts";
import type { Exit } from "../test/support/process.ts";
import { startUpstream, type TestUpstream } from "../test/support/upstream.ts";
import { NotHere } from "./fact.ts";
import { Dice } from "./fuzz-random.ts";
import { anyRequest, FUZZ_KEY, type FuzzRequest } from "./fuzz-requests.ts";
import type { Known } from "./fuzz-values.ts";
import { exchange, type FuzzAnswer } from "./fuzz-wire.ts";
import { line } from "./lines.ts";
import { type Json, Server, until } from "./server.ts";

export interface FuzzOptions {
  readonly requestCount: number;
  readonly seed: number;
}

type Complaint = "5xx" | "no envelope" | "no JSON" | "no request id" | "no answer";

/** The findings after all requests, when the server has stopped. */
interface Aftermath {
  readonly complaints: ReadonlyMap<Complaint, readonly string[]>;
  readonly descriptors: { readonly before: number; readonly after: number };
  readonly leftovers: readonly string[];
  readonly residentMb: number;
  readonly exit: Exit;
}

/** They are so many that the deletions among the requests leave some. */
const KNOWN_BATCHES = 20;
const OTHER_KEY = "key-of-another-project";
const LANES = 8;
const WARM_UP_COUNT = 300;
const MAX_RESIDENT_MB = 400;
const LISTED_COMPLAINTS = 3;
/** On PostgreSQL a batch keeps its journal for so long after its end. */
const KEPT_JOURNALS_MS = 60_000;
const OPEN = ["validating", "in_progress", "finalizing", "cancelling"];

export class FuzzRun {
  readonly #options: FuzzOptions;
  #aftermath: Promise<Aftermath> | null = null;

  constructor(options: FuzzOptions) {
    this.#options = options;
  }

  async assertNone(complaint: Complaint): Promise<void> {
    const found = (await this.#result()).complaints.get(complaint) ?? [];
    const examples = found.slice(0, LISTED_COMPLAINTS).join("\n");
    assert.equal(found.length, 0, `${found.length} requests got ${complaint}:\n${examples}`);
  }

  async assertAlive(): Promise<void> {
    const { exit } = await this.#result();
    assert.deepEqual([exit.code, exit.signal], [0, null], exit.stderr.slice(-2_000));
  }

  async assertDescriptors(): Promise<void> {
    assertLinux();
    const { before, after } = (await this.#result()).descriptors;
    assert.ok(after <= before, `${before} descriptors before, ${after} after`);
  }

  async assertFiles(): Promise<void> {
    assert.deepEqual((await this.#result()).leftovers, []);
  }

  async assertMemory(): Promise<void> {
    assertLinux();
    const { residentMb } = await this.#result();
    assert.ok(residentMb < MAX_RESIDENT_MB, `${residentMb} MB resident`);
  }

  async assertLog(): Promise<void> {
    const { stderr } = (await this.#result()).exit;
    assert.deepEqual(stderr.match(/^.*"level":"(?:error|fatal)".*$/gm)?.slice(0, 3) ?? [], []);
  }

  #result(): Promise<Aftermath> {
    this.#aftermath ??= run(this.#options);
    return this.#aftermath;
  }
}

function assertLinux(): void {
  if (!existsSync("/proc/self/fd")) throw new NotHere();
}

async function run({ requestCount, seed }: FuzzOptions): Promise<Aftermath> {
  const folder = await mkdtemp(join(dataRoot(), "batchd-fuzz-"));
  try {
    await using upstream = await startUpstream();
    const upstreams = [{ name: "any", base_url: upstream.url, models: ["*"] }];
    const prices = [{ model: "*", per_request: "0.001", currency: "USD" }];
    const auth = {
      keys: [
        { name: "fuzzer", key: FUZZ_KEY, scopes: SCOPES },
        { name: "other", key: OTHER_KEY, project: "other" },
      ],
    };
    // A delivery to a bucket that does not answer holds the results of its batch for a day, and they would be left over.
    const deliveries = { client_buckets: false };
    const config = { upstreams, prices, auth, deliveries };
    await using server = await Server.start({ name: "fuzz", folder, key: FUZZ_KEY, config });
    const campaign = new Campaign(server, await knownTo(server), seed);
    await campaign.send(0, WARM_UP_COUNT);
    const before = await settled(server, upstream, { goal: 0, patienceMs: 3_000 });
    await campaign.send(WARM_UP_COUNT, requestCount);
    const after = await settled(server, upstream, { goal: before, patienceMs: 60_000 });
    return {
      complaints: campaign.complaints,
      descriptors: { before, after },
      leftovers: await leftoversOf(server),
      residentMb: residentMbOf(server),
      exit: await server.process.kill("SIGTERM"),
    };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function knownTo(server: Server): Promise<Known> {
  const files: string[] = [];
  const batches: string[] = [];
  for (let n = 0; n < KNOWN_BATCHES; n++) {
    const file = await server.upload([line("a"), line("b")]);
    files.push(file);
    batches.push(String((await server.create(file)).json["id"]));
  }
  // Things of another project are as unknown as any.
  const foreign = await foreignTo(server);
  const upload = await server.post("/v1/uploads", {
    filename: "f",
    purpose: "user_data",
    bytes: 10,
    mime_type: "x",
  });
  const form = new FormData();
  form.set("data", new Blob(["0123456789"]));
  const id = String(upload.json["id"]);
  const part = await server.call("POST", `/v1/uploads/${id}/parts`, { body: form });
  const { json: made } = await server.post("/v1/admin/keys", { name: "known" });
  return {
    files: [...files, foreign.file],
    batches: [...batches, foreign.batch],
    upload: id,
    part: String(part.json["id"]),
    key: String(made["id"]),
  };
}

async function foreignTo(server: Server): Promise<{ file: string; batch: string }> {
  const openai = server.client(OTHER_KEY);
  const content = new File([`${line("a")}\n`], "input.jsonl");
  const file = await openai.files.create({ file: content, purpose: "batch" });
  const batch = await openai.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });
  return { file: file.id, batch: batch.id };
}

class Campaign {
  readonly complaints = new Map<Complaint, string[]>();
  readonly #server: Server;
  readonly #known: Known;
  readonly #seed: number;

  constructor(server: Server, known: Known, seed: number) {
    this.#server = server;
    this.#known = known;
    this.#seed = seed;
  }

  /** Sends the requests from number `from` up to `to`, several at once. */
  async send(from: number, to: number): Promise<void> {
    let next = from;
    const lane = async () => {
      while (next < to) await this.#sendOne(next++);
    };
    await Promise.all(Array.from({ length: LANES }, lane));
  }

  async #sendOne(index: number): Promise<void> {
    const request = anyRequest(new Dice(this.#seed, index), this.#known);
    const answers = await exchange(this.#server.url, request);
    const name = `#${index} ${JSON.stringify(request.bytes.toString("latin1").slice(0, 500))}`;
    if (answers.length === 0 && request.isWhole) this.#complain("no answer", name);
    for (const answer of answers) {
      const text = `${name}\n   → ${answer.status} ${JSON.stringify(answer.body.slice(0, 300))}`;
      for (const complaint of complaintsAbout(answer, request)) this.#complain(complaint, text);
    }
  }

  #complain(complaint: Complaint, about: string): void {
    this.complaints.set(complaint, [...(this.complaints.get(complaint) ?? []), about]);
  }
}

function complaintsAbout({ status, headers, body }: FuzzAnswer, request: FuzzRequest): Complaint[] {
  const isGood = status >= 200 && status < 300;
  const complaints: Complaint[] = [];
  // An invalid status is as bad as a fault of the server.
  if (!(status < 500)) complaints.push("5xx");
  if (isGood || isPage(headers, request)) return complaints;
  if (headers.get("content-type") !== "application/json") complaints.push("no JSON");
  if (!/^req_[0-9a-f]{32}$/.test(headers.get("x-request-id") ?? "")) {
    complaints.push("no request id");
  }
  if (!request.isHead && !isEnvelope(body)) complaints.push("no envelope");
  return complaints;
}

/** The web page answers a browser that is not signed in with a page. */
const isPage = (headers: FuzzAnswer["headers"], { bytes }: FuzzRequest): boolean =>
  headers.get("content-type")?.startsWith("text/html") === true &&
  bytes.includes("Accept: text/html");

function isEnvelope(body: string): boolean {
  try {
    const { error } = JSON.parse(body) as { error: Json };
    return Object.keys(error).sort().join() === "code,message,param,type";
  } catch {
    return false;
  }
}

interface Settling {
  /** So few descriptors are enough. */
  readonly goal: number;
  /** Idle connections to PostgreSQL are closed after ten seconds. */
  readonly patienceMs: number;
}

/** Waits until all batches are final, closes connections to the upstream, and counts descriptors. */
async function settled(
  server: Server,
  upstream: TestUpstream,
  { goal, patienceMs }: Settling,
): Promise<number> {
  await until(
    "batches to end",
    () => openBatchCount(server),
    (count) => count === 0,
  );
  const { port } = upstream;
  await upstream.close();
  let least = Number.POSITIVE_INFINITY;
  const startedAtMs = Date.now();
  const check = async () => {
    least = Math.min(least, descriptorCount(server));
    return least <= goal || Date.now() - startedAtMs > patienceMs;
  };
  await until("descriptors to be closed", check, Boolean);
  await upstream.listen(port);
  return least;
}

/** Cancels batches that wait for their client, such as those after their sample. */
async function openBatchCount(server: Server): Promise<number> {
  let count = 0;
  for await (const batch of server.openai.batches.list({ limit: 100 })) {
    if (!OPEN.includes(batch.status)) continue;
    count++;
    const { paused } = (batch as unknown as { x_batchd: { paused: unknown } }).x_batchd;
    if (paused !== null) await server.post(`/v1/batches/${batch.id}/cancel`, {});
  }
  return count;
}

const descriptorCount = ({ process: { pid } }: Server): number =>
  existsSync("/proc/self/fd") ? readdirSync(`/proc/${pid}/fd`).length : 0;

function residentMbOf({ process: { pid } }: Server): number {
  if (!existsSync("/proc/self/fd")) return 0;
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return Math.round(Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) / 1024);
}

/** Returns temporary files, and content that belongs to no file. The server removes deleted content soon after. */
async function leftoversOf(server: Server): Promise<string[]> {
  const below = (folder: string) =>
    entriesBelow(join(server.blobsDir, folder)).map(({ name }) => name);
  const check = async () => {
    const journals = below("journal");
    // They go last, and the lists of files are long.
    if (journals.length > 0) return journals;
    const known = new Set<string>();
    for (const openai of [server.openai, server.client(OTHER_KEY)]) {
      for await (const { id } of openai.files.list()) known.add(id);
    }
    // The content of an input that was made of another batch has the number of a try behind the id of its file.
    const strays = below("files").filter((name) => !known.has(name.split(".")[0] ?? name));
    return [...below(".tmp"), ...strays];
  };
  const startedAtMs = Date.now();
  return until(
    "the sweep",
    check,
    (found) => found.length === 0 || Date.now() - startedAtMs > KEPT_JOURNALS_MS + 10_000,
  );
}
