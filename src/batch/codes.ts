/**
 * The codes in `errors.data[]` of a failed batch, and in `error` of a row of an error file, with their meanings. Both
 * lists are closed. `docs/errors.md` is generated from them.
 */

/** The faults of an input file. */
export const FAULT_CODES = {
  invalid_json_line: "The line is not one JSON object in UTF-8.",
  line_too_long: "The line is longer than the server takes (`limits.max_line_bytes`).",
  missing_required_parameter: "The line has no `custom_id`, `method`, `url` or `body`.",
  invalid_type: "The `custom_id` or the `model` is not a string, or the `body` is not an object.",
  invalid_value: "The `custom_id` is empty, or longer than 65,536 bytes.",
  duplicate_custom_id: "A line before this one has the same `custom_id`.",
  invalid_method: "The `method` is not `POST`.",
  invalid_url: "The `url` is not the endpoint of the batch, with or without its `/v1`.",
  invalid_request:
    "The body lacks its `model` and there is no default, or names a second one (`model` again with another value, or `Model`), or a chat lacks its `messages`; without a line: the input file is missing or has another purpose than `batch`.",
  streaming_unsupported: "The body asks for `stream: true`.",
  model_not_found:
    "No upstream serves the model, or its name is longer than 1,024 bytes; without a line: the default model of the batch.",
  mismatched_model:
    "The line asks for another model than the lines before it, and the server does not allow that (`limits.allow_mixed_models`).",
  empty_file: "The file has no request.",
  too_many_requests:
    "The file has more requests than a batch may hold (`limits.max_requests_per_batch`).",
  too_many_inputs:
    "The requests of an embeddings batch have more inputs together than allowed (`limits.max_embedding_inputs_per_batch`).",
  token_limit_exceeded:
    "The project has more to do than it may (`quotas.enqueued_lines`, `quotas.enqueued_tokens`); the message names the quota. Ask again when other batches have ended.",
  budget_without_price:
    "The batch has a budget, and a line asks for a model without a price (`prices`), so its cost is not known.",
  file_too_large: "The file is larger than the server takes (`limits.max_file_bytes`).",
  source_unusable:
    "The batch whose lines were to be run (`x_batchd.from`) has failed, was deleted or has no such lines, or a file of it was deleted or cannot be read any more; the message says which.",
  template_value_missing:
    "The template of the batch names a part that the line or its answer does not have; the line is counted in the input that was to be made.",
  storage_limit_exceeded:
    "The project has no room for the input that was made of lines of another batch (`quotas.files`, `quotas.stored_bytes`); the message names the quota.",
  input_unreadable: "The file was stored, but its content cannot be read any more.",
  internal_error:
    "The server failed to validate the file, or later to write the results, in several tries; its log says why.",
} as const;
export type FaultCode = keyof typeof FAULT_CODES;

/** The reasons for which a line has no answer. */
export const NO_ANSWER_CODES = {
  batch_cancelled: "The batch was cancelled before the line was answered.",
  batch_expired: "The completion window ended before the line was answered.",
  request_timeout: "The model did not answer in time, and neither when it was asked again.",
  upstream_unreachable: "No connection to the model server could be made.",
  upstream_refused:
    "The model server refused this request for the sake of batchd's own key, account or address there, although it answered others.",
  upstream_error: "The connection broke, or what came back was not an answer in JSON.",
  answer_lost:
    "The stored answer cannot be read any more, and the completion window left no time to ask again, or the answer is from the batch that a retry with `merge` was made of.",
  duplicates_too_large:
    "The body of the line came before (`dedupe`), and with its answer the rows of such lines would have more bytes than the largest file (`limits.max_upload_bytes`).",
  input_unreadable:
    "The line cannot be read from the input file any more; its `custom_id` is null where it is not known, and the message has its number.",
  internal_error: "The server failed to process the line in several tries; its log says why.",
} as const;
export type NoAnswerCode = keyof typeof NO_ANSWER_CODES;
