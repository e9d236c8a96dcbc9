import type { HttpBindings } from "@hono/node-server";
import type { Context } from "hono";
import type { ScopedId, UntrustedId } from "../batch/batch.ts";
import type { MemoryBudget } from "../resources/memory-budget.ts";

/** What every request carries. */
export interface AppEnv {
  Bindings: HttpBindings;
  Variables: {
    requestId: string;
    /** By `performance.now()`. */
    startedAtMs: number;
    /** Whose files and batches it may see. */
    project: string;
    /** What bodies are held in. */
    memory: MemoryBudget;
    /** Of the answer that was passed on, in the upstream's log. */
    upstreamRequestId?: string | undefined;
  };
}

export type AppContext = Context<AppEnv>;

/** The thing that the path of a request names, within the project of its key. */
export const scopedIdOf = <Kind extends string>(c: AppContext): ScopedId<Kind> => ({
  project: c.get("project"),
  id: (c.req.param("id") ?? "") as UntrustedId<Kind>,
});
