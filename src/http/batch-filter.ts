/**
 * Reads the filters of the list of batches from the query. They are batchd's own: without them the list is OpenAI's, and
 * parameters that no list knows are ignored there.
 */
import { BATCH_ENDPOINTS, BATCH_STATUSES } from "../contract/batch.ts";
import { CREATED_AFTER, SEARCH_MAX_LENGTH } from "../contract/batch-list.ts";
import { MAX_MODEL_BYTES, METADATA_LIMITS } from "../contract/create-batch.ts";
import { tooManyProperties } from "../errors.ts";
import type { BatchFilter } from "../store/batches.ts";
import { repeatedParameter, shortText } from "./body.ts";
import type { AppContext } from "./context.ts";
import { boundedIntegerParam, choiceParam, chosen, textParam } from "./query.ts";

const FILTERS = ["status", "endpoint", "model", "created_after", "search"];
const METADATA_FILTER = /^metadata\[(.*)\]$/s;

/** Returns undefined for a query without filters. */
export function batchFilter(c: AppContext): BatchFilter | undefined {
  assertEachOnce(c);
  const createdAfter = boundedIntegerParam(c, "created_after", CREATED_AFTER);
  const filter: BatchFilter = {
    status: choiceParam(c, "status", BATCH_STATUSES),
    endpoint: endpointParam(c),
    // A name has at most as many characters as bytes.
    model: shortText("model", textParam(c, "model"), MAX_MODEL_BYTES),
    createdAtOrAfterMs: createdAfter === null ? null : (createdAfter + 1) * 1000,
    metadata: metadataParams(c),
    search: shortText("search", textParam(c, "search"), SEARCH_MAX_LENGTH),
  };
  const { metadata, ...others } = filter;
  const isFiltered =
    Object.values(others).some((value) => value !== null) || Object.keys(metadata).length > 0;
  return isFiltered ? filter : undefined;
}

/** One value of a filter that comes twice would be ignored, and nothing would say so. */
function assertEachOnce(c: AppContext): void {
  for (const [name, values] of Object.entries(c.req.queries())) {
    const isFilter = FILTERS.includes(name) || METADATA_FILTER.test(name);
    if (isFilter && values.length > 1) throw repeatedParameter(name);
  }
}

/** Completes an endpoint, because Azure's clients leave out `/v1`. */
export const fullEndpoint = (given: string): string =>
  BATCH_ENDPOINTS.find((each) => each === `/v1${given}`) ?? given;

function endpointParam(c: AppContext): BatchFilter["endpoint"] {
  const text = textParam(c, "endpoint");
  return chosen("endpoint", text === null ? null : fullEndpoint(text), BATCH_ENDPOINTS);
}

/** Reads parameters such as `metadata[team]=search`. */
function metadataParams(c: AppContext): Readonly<Record<string, string>> {
  const { pairs, keyLength, valueLength } = METADATA_LIMITS;
  const found = Object.entries(c.req.query()).flatMap(([name, value]) => {
    const key = METADATA_FILTER.exec(name)?.[1];
    if (key === undefined) return [];
    return [[shortText("metadata", key, keyLength), shortText(name, value, valueLength)] as const];
  });
  if (found.length > pairs) throw tooManyProperties("metadata", found.length, pairs);
  return Object.fromEntries(found);
}
