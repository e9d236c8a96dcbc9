/** The route of run records. */
import type { Runs } from "../api/runs.ts";
import { scopedIdOf } from "./context.ts";
import { JSON_TYPE } from "./json.ts";
import { assertKnownParams } from "./query.ts";
import type { Routes } from "./routes.ts";

export interface RunRoutesDeps {
  readonly runs: Runs;
}

export function mountRuns(app: Routes, { runs }: RunRoutesDeps): void {
  // The bytes are sent as they are kept, because a delivery of the batch has the same.
  app.get("/v1/batches/:id/run", async (c) => {
    assertKnownParams(c, []);
    return c.body(new Uint8Array(await runs.find(scopedIdOf(c))), 200, JSON_TYPE);
  });
}
