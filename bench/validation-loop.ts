/**
 * Validation alone, a process of its own: the reading, splitting, checking and planning that intake does,
 * without store and server.
 *
 * Arguments: a folder and the name of an input file in it. Prints bytes per second of processor time, of all threads
 * together: what one core does, however busy the machine is.
 */
import { LineChecker } from "../src/batch/line.ts";
import { DEFAULT_CHUNK_LIMITS, Planner } from "../src/batch/plan.ts";
import { LineSplitter, type SplitLine } from "../src/batch/split.ts";
import { openDiskBlobs } from "../src/blobs/disk.ts";
import { ENDPOINT } from "./inputs.ts";

const MAX_LINE_BYTES = 33_554_432;

const [folder = "", name = ""] = process.argv.slice(2);
const blobs = await openDiskBlobs(folder);
const checker = new LineChecker(ENDPOINT, () => true);
const planner = new Planner(DEFAULT_CHUNK_LIMITS);
const splitter = new LineSplitter(MAX_LINE_BYTES, { start: 0, firstLine: 1 });
let readBytes = 0;

function add({ number, start, end, bytes }: SplitLine): void {
  const fault = bytes === null ? { message: "too long" } : checker.findFault(bytes);
  if (fault !== null) throw new Error(`line ${number}: ${fault.message}`);
  planner.add({ number, start, end, model: checker.model ?? "", routeKey: "bench" });
}

const before = process.cpuUsage();
for await (const bytes of blobs.read(name)) {
  readBytes += (bytes as Buffer).length;
  for (const line of splitter.push(bytes as Buffer)) add(line);
}
for (const line of splitter.end()) add(line);
planner.finish();
const { user, system } = process.cpuUsage(before);
process.stdout.write(JSON.stringify((readBytes / (user + system)) * 1e6));
