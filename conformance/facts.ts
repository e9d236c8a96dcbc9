/** All facts, in the order of the contract. */
import type { Section } from "./fact.ts";
import { azure } from "./facts/azure.ts";
import { batchObject } from "./facts/batch-object.ts";
import { commonErrors, listBatches, models, oneBatch } from "./facts/batches.ts";
import { createBatch } from "./facts/create-batch.ts";
import { createFile } from "./facts/create-file.ts";
import { differences } from "./facts/differences.ts";
import { content, fileSemantics, listFiles, oneFile } from "./facts/files.ts";
import { broken, documented } from "./facts/generated.ts";
import { clientRequests, responseHeaders } from "./facts/headers.ts";
import { lifecycle, stopping } from "./facts/lifecycle.ts";
import { lineErrors } from "./facts/line-errors.ts";
import { batchError, file, lists } from "./facts/objects.ts";
import { opensearch } from "./facts/opensearch.ts";
import { results } from "./facts/results.ts";
import { errors, leniency, pagination, polling, retries } from "./facts/sdk.ts";
import { errorEnvelope, model, upload } from "./facts/small-objects.ts";
import { uploads } from "./facts/uploads.ts";
import { lineFormat, validation } from "./facts/validation.ts";
import { webhooks } from "./facts/webhooks.ts";
import type { FuzzRun } from "./fuzz.ts";
import type { SchemaRun } from "./schema.ts";

interface Runs {
  readonly schema: SchemaRun;
  readonly fuzz: FuzzRun;
}

export const readSections = ({ schema, fuzz }: Runs): readonly Section[] => [
  batchObject,
  batchError,
  file,
  lists,
  upload,
  model,
  errorEnvelope,
  createFile,
  listFiles,
  oneFile,
  content,
  createBatch,
  listBatches,
  oneBatch,
  models,
  commonErrors,
  lineFormat,
  validation,
  lineErrors,
  results,
  lifecycle,
  stopping,
  fileSemantics,
  uploads,
  webhooks,
  responseHeaders,
  clientRequests,
  pagination,
  retries,
  errors,
  polling,
  leniency,
  azure,
  opensearch,
  documented(schema),
  broken(fuzz),
  differences,
];
