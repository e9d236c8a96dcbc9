/**
 * Makes ids of 128 random bits, as 32 hexadecimal digits. Each line of a batch takes two ids, and a system call for
 * each would be a large part of the cost of a line. So one call draws the bits of 512 ids.
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
