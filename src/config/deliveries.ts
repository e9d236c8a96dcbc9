/** The schema of `deliveries`: what clients may do that bring a bucket of their own. */
import { z } from "zod";
import { host } from "./values.ts";

const MIN_KEY_CHARACTERS = 32;

export const DELIVERIES = z.strictObject({
  client_buckets: z
    .boolean()
    .default(true)
    .describe(
      "Whether clients may have results delivered to an S3 bucket that they name, with credentials that they bring.",
    ),
  credentials_key: z
    .string()
    .min(MIN_KEY_CHARACTERS, `use at least ${MIN_KEY_CHARACTERS} random characters`)
    .optional()
    .meta({
      description:
        "Encrypts those credentials until their delivery has ended. All servers on a database need the same one; deliveries that wait fail when it changes.",
      left_out:
        "`batchd.credentials-key` in `data_dir`, which is made when it is first needed and must stay out of backups; with PostgreSQL, such deliveries are refused",
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the file has it so.
      example: "${BATCHD_CREDENTIALS_KEY}",
    }),
  allow_private_hosts: z.array(host).default([]).meta({
    description:
      "Host names and addresses that buckets of clients may be at although they are not public.",
    example: "[minio.internal]",
  }),
});
export type DeliveriesConfig = z.infer<typeof DELIVERIES>;
