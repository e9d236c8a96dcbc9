/**
 * Measures the turns of the event loop of a server that loads it (`node --import`). It counts processor time, so that a
 * busy machine makes no difference. Each long turn is a line of the file that `TURN_WATCH_FILE` names, in milliseconds.
 * The threads of the server load it as well. Their turns hold up nothing, and are not measured.
 */
import { appendFileSync } from "node:fs";
import { isMainThread } from "node:worker_threads";

const file = process.env["TURN_WATCH_FILE"] ?? "";
const LONG_MS = 10;

const busyMs = () => {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1000;
};

let before = busyMs();

function measure(): void {
  const tookMs = busyMs() - before;
  if (tookMs > LONG_MS) appendFileSync(file, `${tookMs}\n`);
  before = busyMs();
}

if (isMainThread) setInterval(measure, 1).unref();
