import type { HttpBindings } from "@hono/node-server";
import type { Context } from "hono";

/** What every request carries. */
export interface AppEnv {
  Bindings: HttpBindings;
  Variables: {
    requestId: string;
    /** By `performance.now()`. */
    startedAtMs: number;
    /** Whose files and batches it may see. */
    project: string;
    /** Of the answer that was passed on, in the upstream's log. */
    upstreamRequestId?: string | undefined;
  };
}

export type AppContext = Context<AppEnv>;
