/**
 * The thread of one conversion. It answers each message, a piece of the result file or null at its end, with the bytes of
 * the table that are ready.
 */
import { parentPort, workerData } from "node:worker_threads";
import type { TableFormat } from "../contract/results.ts";
import { openConversion } from "./conversion.ts";

const conversion = await openConversion((workerData as { format: TableFormat }).format);

parentPort?.on("message", (piece: Uint8Array | null) => {
  const ready = piece === null ? conversion.end() : conversion.push(Buffer.from(piece.buffer));
  // Buffers share their memory with others, so only copies can be moved.
  const moved = ready.map((bytes) => new Uint8Array(bytes));
  parentPort?.postMessage(
    moved,
    moved.map(({ buffer }) => buffer),
  );
});
