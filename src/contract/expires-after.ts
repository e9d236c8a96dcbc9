/** Says when files expire, as a client may ask for it: for its uploads, and for the results of its batches. */
import { z } from "zod";

/** The range of seconds after its creation at which a client may let a file expire. */
export const EXPIRES_AFTER_SECONDS = { min: 3_600, max: 2_592_000 } as const;

export const ExpiresAfter = z.strictObject({
  anchor: z.literal("created_at"),
  seconds: z.int().min(EXPIRES_AFTER_SECONDS.min).max(EXPIRES_AFTER_SECONDS.max),
});
