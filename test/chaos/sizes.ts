/** How large a run is: the work, the model server, and what happens to the processes meanwhile. */

export interface Sizes {
  readonly apiCount: number;
  readonly workerCount: number;
  readonly projectCount: number;
  readonly batchCount: number;
  readonly linesPerBatch: number;
  readonly killsPerProcess: number;
  /** How often each process stands still, and for how long: beyond its leases. */
  readonly freezesPerProcess: number;
  readonly freezeMs: number;
  readonly databaseRestarts: number;
  /** How long the bucket answers nothing but 503 `SlowDown`. */
  readonly slowDownMs: number;
  /** The mean time between two events. */
  readonly gapMs: number;
  /** The limit of the model whose requests in flight are limited, and the time of each answer. */
  readonly maxConcurrency: number;
  readonly answerMs: number;
  /** The limit of the other model. */
  readonly requestsPerMinute: number;
}

export const FULL: Sizes = {
  apiCount: 2,
  workerCount: 3,
  projectCount: 4,
  batchCount: 20,
  linesPerBatch: 2_000,
  killsPerProcess: 10,
  freezesPerProcess: 2,
  freezeMs: 8_000,
  databaseRestarts: 2,
  slowDownMs: 60_000,
  gapMs: 4_500,
  maxConcurrency: 24,
  answerMs: 120,
  requestsPerMinute: 3_000,
};

/** Some twenty seconds, for `npm test`. */
export const SMALL: Sizes = {
  ...FULL,
  workerCount: 2,
  apiCount: 1,
  projectCount: 2,
  batchCount: 8,
  linesPerBatch: 160,
  killsPerProcess: 2,
  freezesPerProcess: 0,
  databaseRestarts: 1,
  slowDownMs: 3_000,
  gapMs: 1_500,
};

/** One or two minutes, for `npm run upgrade`. */
export const UPGRADE: Sizes = { ...FULL, linesPerBatch: 400 };
