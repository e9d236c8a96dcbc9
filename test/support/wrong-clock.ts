/** The environment of a server whose clock is wrong. */
import { fileURLToPath } from "node:url";

const SHIFTED = fileURLToPath(new URL("fixtures/shifted-clock.ts", import.meta.url));

export const clockWrongBy = (ms: number) => ({
  NODE_OPTIONS: `--import ${SHIFTED}`,
  CLOCK_SHIFT_MS: String(ms),
});
