/** The schema of the `Idempotency-Key` header. */
import { z } from "zod";

/** The allowed form of an `Idempotency-Key`. */
export const IDEMPOTENCY_KEY = /^[\x20-\x7e]{1,255}$/;

export const IdempotencyHeader = z.object({
  "idempotency-key": z
    .string()
    .regex(IDEMPOTENCY_KEY)
    .optional()
    .describe(
      "Makes the request safe to repeat: for 24 hours the same key, such as `nightly-2026-01-01`, with the same request gets the first answer again, with the header `idempotent-replayed: true`.",
    ),
});
