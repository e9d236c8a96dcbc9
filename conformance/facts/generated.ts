/** Generated requests, and the facts that hold for all of them. */
import { type Section, strong } from "../fact.ts";
import type { FuzzRun } from "../fuzz.ts";
import { OPERATIONS, type SchemaRun } from "../schema.ts";

export const documented = (run: SchemaRun): Section => ({
  number: "13",
  title: "The API document",
  facts: [
    strong.schema(
      "13-complete",
      "Every operation of `openapi.yaml` was asked, with good and with bad data",
      () => run.assertComplete(),
    ),
    ...OPERATIONS.map(({ id, label }) =>
      strong.schema(
        `13-${id}`,
        `\`${label}\`: every answer has a documented status, type, headers and body, and none is 5xx`,
        () => run.assertHolds(label),
      ),
    ),
  ],
});

export const broken = (run: FuzzRun): Section => ({
  number: "14",
  title: "Broken requests",
  facts: [
    strong.fuzz("14-no-5xx", "No request is answered with 5xx", () => run.assertNone("5xx")),
    strong.fuzz(
      "14-alive",
      "No request ends the process, and it leaves with code 0 when it is told to",
      () => run.assertAlive(),
    ),
    strong.fuzz("14-envelope", "Every refusal is the error envelope", () =>
      run.assertNone("no envelope"),
    ),
    strong.fuzz("14-json", "as `application/json`", () => run.assertNone("no JSON")),
    strong.fuzz("14-request-id", "with an `x-request-id`", () => run.assertNone("no request id")),
    strong.fuzz("14-answered", "Every request that came in whole is answered", () =>
      run.assertNone("no answer"),
    ),
    strong.fuzz("14-descriptors", "Afterwards no file and no connection is left open", () =>
      run.assertDescriptors(),
    ),
    strong.fuzz("14-files", "No temporary file is left, and no content without a file", () =>
      run.assertFiles(),
    ),
    strong.fuzz("14-memory", "Memory stays bounded", () => run.assertMemory()),
    strong.fuzz("14-log", "The log has no error", () => run.assertLog()),
  ],
});
