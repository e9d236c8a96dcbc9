/**
 * The record of a run, `run.json`: how the results of a batch came to be. Its JSON Schema, docs/run_record.v1.schema.json, is
 * generated from here. A field may be added; any other change needs a new version.
 */
import { z } from "zod";
import { BATCH_STATUSES, BatchEndpoint } from "./batch.ts";
import { SOURCE_LINES } from "./batch-extension.ts";
import { Decimal } from "./price.ts";
import { UnixSeconds } from "./unix-seconds.ts";

/** The version of the schema. */
export const RUN_RECORD_VERSION = "run_record.v1";

const NamedLines = z.object({ name: z.string(), lines: z.int() });

const NameCounts = z
  .object({
    names: z.array(NamedLines).describe("The most frequent first, at most 100."),
    others: z.int().describe("The number of lines with other names."),
  })
  .nullable();

const RunFile = z.object({
  file_id: z.string(),
  bytes: z.int().nullable(),
  sha256: z.string().nullable().describe("In hexadecimal."),
  lines: z.int().nullable().describe("Rows of the file, or lines that are not blank."),
});

const RunParameters = z
  .object({
    common: z
      .record(z.string(), z.unknown())
      .describe("The parameters that all lines have, with their values."),
    large: z
      .array(z.object({ name: z.string(), bytes: z.int(), sha256: z.string() }))
      .describe("Those whose values are too long to be repeated."),
    varying: z
      .array(z.string())
      .describe("The names of parameters that differ between lines, or that some lines lack."),
    left_out: z.int().describe("The number of parameters that were too many to be compared."),
  })
  .nullable()
  .describe(
    "The members of the request bodies, without the model and without prompts, messages and other content.",
  );

export const RunRecord = z
  .object({
    schema: z.literal(RUN_RECORD_VERSION),
    batch_id: z.string(),
    name: z.string().nullable().describe("`name` of the metadata."),
    status: z.enum(BATCH_STATUSES),
    endpoint: BatchEndpoint,
    completion_window: z.string(),
    metadata: z.record(z.string(), z.string()).nullable(),
    server_version: z
      .string()
      .nullable()
      .describe("The version of batchd that wrote the results; null when it is not known."),
    created_at: UnixSeconds,
    in_progress_at: UnixSeconds.nullable(),
    finalizing_at: UnixSeconds.nullable(),
    ended_at: UnixSeconds.nullable(),
    expires_at: UnixSeconds,
    models: z.object({
      asked: NameCounts.describe("The models that the lines ask for."),
      served: NameCounts.describe("The models that the answers name."),
      system_fingerprints: NameCounts.describe("`system_fingerprint` of the answers."),
    }),
    upstreams: z
      .array(z.string())
      .nullable()
      .describe("The upstreams that were configured for these models when the batch ended."),
    parameters: RunParameters,
    input: RunFile.extend({
      filename: z.string().nullable(),
      location: z
        .object({ name: z.string(), path: z.string(), revision: z.string().nullable() })
        .nullable()
        .describe("The place that the input was copied from, and the revision of it."),
    }),
    output: RunFile.nullable(),
    errors: RunFile.nullable(),
    from: z
      .object({ batch: z.string(), lines: z.enum(SOURCE_LINES), merge: z.boolean() })
      .nullable()
      .describe("The batch that the input was made of."),
    request_counts: z.object({ total: z.int(), completed: z.int(), failed: z.int() }),
    usage: z.object({
      input_tokens: z.int(),
      cached_tokens: z.int(),
      output_tokens: z.int(),
      reasoning_tokens: z.int(),
      total_tokens: z.int(),
    }),
    cost: z.object({ currency: z.string(), amount: Decimal }).nullable(),
  })
  .meta({ id: "RunRecord" });
export type RunRecord = z.infer<typeof RunRecord>;

/** The JSON Schema of the record, as text. */
export function runRecordSchema(): string {
  const schema = z.toJSONSchema(RunRecord, { target: "draft-2020-12", io: "output" });
  const { $schema, id: _, ...rest } = schema as Record<string, unknown>;
  const head = { $schema, title: "Run record of a batch", $id: `urn:batchd:${RUN_RECORD_VERSION}` };
  return `${JSON.stringify({ ...head, ...rest }, null, 2)}\n`;
}
