/** The bounds of the routes that read the finished lines of a batch. */
export const RESULT_LIMITS = {
  afterLine: { min: 0, max: 2 ** 32 - 1 },
  limit: { min: 1, max: 1_000_000 },
  waitSeconds: { min: 0, max: 60 },
} as const;
