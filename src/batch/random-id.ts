/**
 * 128 random bits as 32 hexadecimal digits. Randomness is drawn for many ids at once: each line of a batch
 * takes two, and asking the system for each would be a good part of the cost of a line.
 */
import { randomFillSync } from "node:crypto";

const ID_BYTES = 16;
const pool = Buffer.allocUnsafe(512 * ID_BYTES);
let used = pool.length;

export function randomHexId(): string {
  if (used === pool.length) {
    randomFillSync(pool);
    used = 0;
  }
  used += ID_BYTES;
  return pool.toString("hex", used - ID_BYTES, used);
}
