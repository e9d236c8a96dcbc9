/** Servers whose clock is wrong, while elapsed time is right. */
import { fileURLToPath } from "node:url";
import { type Clock, systemClock } from "../../src/clock.ts";

const SHIFTED = fileURLToPath(new URL("fixtures/shifted-clock.ts", import.meta.url));

/** The environment of a process whose clock is wrong. */
export const clockWrongBy = (ms: number) => ({
  NODE_OPTIONS: `--import ${SHIFTED}`,
  CLOCK_SHIFT_MS: String(ms),
});

/** A clock for a server of this process. */
export const clockAhead = (ms: () => number): Clock => ({
  ...systemClock,
  nowMs: () => systemClock.nowMs() + ms(),
});
