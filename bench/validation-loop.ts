/**
 * Measures validation alone, in a process of its own: the reading, splitting, checking and planning of intake, without
 * store and server. The file counts as several batches of the default size, one after the other. It is read twice and
 * the second time counts, because a server has compiled its code long before.
 *
 * Arguments: a folder and the name of an input file in it. Prints bytes per second of processor time, of all threads
 * together, so that a busy machine makes no difference.
 */
import { LineChecker } from "../src/batch/line-check.ts";
import { DEFAULT_CHUNK_LIMITS, Planner } from "../src/batch/plan.ts";
import { openDiskBlobs } from "../src/blobs/disk.ts";
import { LineSplitter, type SplitLine } from "../src/text/split.ts";
import { ENDPOINT } from "./inputs.ts";

const MAX_LINE_BYTES = 33_554_432;
const LINES_PER_BATCH = 50_000;

const [folder = "", name = ""] = process.argv.slice(2);
const blobs = await openDiskBlobs(folder);
const newBatch = () => ({
  checker: new LineChecker(ENDPOINT, {
    routeKeyOf: () => "bench",
    defaultModel: null,
    allowsMixedModels: false,
  }),
  planner: new Planner(DEFAULT_CHUNK_LIMITS),
  lineCount: 0,
});
let batch = newBatch();

function add({ number, start, end, bytes }: SplitLine): void {
  const fault = bytes === null ? { message: "too long" } : batch.checker.findFault(bytes);
  if (fault !== null) throw new Error(`line ${number}: ${fault.message}`);
  const { name: model = "", routeKey = "" } = batch.checker.latestModel ?? {};
  batch.planner.add({ number, start, end, model, routeKey, isSampled: false, shift: 0 });
  if (++batch.lineCount === LINES_PER_BATCH) finishBatch();
}

function finishBatch(): void {
  batch.planner.finish();
  batch = newBatch();
}

async function validate(): Promise<number> {
  const splitter = new LineSplitter(MAX_LINE_BYTES, { start: 0, firstLine: 1 });
  let readBytes = 0;
  for await (const bytes of blobs.read(name)) {
    readBytes += (bytes as Buffer).length;
    for (const line of splitter.push(bytes as Buffer)) add(line);
  }
  for (const line of splitter.end()) add(line);
  finishBatch();
  return readBytes;
}

await validate();
const before = process.cpuUsage();
const readBytes = await validate();
const { user, system } = process.cpuUsage(before);
process.stdout.write(JSON.stringify((readBytes / (user + system)) * 1e6));
