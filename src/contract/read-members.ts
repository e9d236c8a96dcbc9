/**
 * The members of batches, files, uploads and deliveries that a client reads. Any of them may be missing, and others may
 * be there: the server may be another one than batchd, or a newer one.
 */
import { z } from "zod";

const text = z.string().nullish();
const number = z.number().nullish();
/** A bar of progress and a sum make sense of nothing else. */
const count = z.int().min(0);
const cost = { currency: z.string(), so_far: z.string(), projected: text };
const failure = { lines: z.number(), status_code: number, code: text };
const fault = { line: number, message: z.string(), code: text };

const Extension = z.looseObject({
  paused: z.looseObject({ reason: z.string(), since: number }).nullish(),
  waiting: z.looseObject({ reason: z.string(), upstream_error: text }).nullish(),
  cost: z.looseObject(cost).nullish(),
  failures: z.array(z.looseObject(failure)).nullish(),
  from: z.looseObject({ batch: z.string() }).nullish(),
  eta: number,
  budget: text,
  priority: number,
});

export const ReadMembers = z.looseObject({
  endpoint: text,
  model: text,
  filename: text,
  purpose: text,
  bytes: number,
  input_file_id: text,
  output_file_id: text,
  error_file_id: text,
  location: text,
  address: text,
  error: z.looseObject({ message: z.string() }).nullish(),
  errors: z.looseObject({ data: z.array(z.looseObject(fault)).nullish() }).nullish(),
  request_counts: z.looseObject({ total: count, completed: count, failed: count }).nullish(),
  usage: z.looseObject({ input_tokens: z.number(), output_tokens: z.number() }).nullish(),
  x_batchd: Extension.nullish(),
});
