/** The schema of errors. Which errors there are is in `errors.ts`. */
import { z } from "zod";

/** The one error envelope of the API. All four keys are always present. */
export const ErrorEnvelope = z
  .object({
    error: z.object({
      message: z.string(),
      type: z.string(),
      param: z.string().nullable(),
      code: z.string().nullable(),
    }),
  })
  .meta({ id: "Error", description: "The one shape of every error." });

export type ErrorEnvelope = z.infer<typeof ErrorEnvelope>;
