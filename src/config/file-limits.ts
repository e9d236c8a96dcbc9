/** The limits of a configuration, as the rules for input files take them. */
import type { FileLimits } from "../batch/file-check.ts";
import type { Config } from "./schema.ts";

export const fileLimits = ({ limits }: Pick<Config, "limits">): FileLimits => ({
  maxFileBytes: limits.max_file_bytes,
  maxRequestsPerBatch: limits.max_requests_per_batch,
  maxLineBytes: limits.max_line_bytes,
  maxEmbeddingInputsPerBatch: limits.max_embedding_inputs_per_batch,
  allowMixedModels: limits.allow_mixed_models,
});
