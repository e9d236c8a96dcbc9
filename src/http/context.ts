/** The context of a request: the values that middleware sets and routes read. */
import type { HttpBindings } from "@hono/node-server";
import type { Context } from "hono";
import type { Caller } from "../api/access.ts";
import type { ScopedId, UntrustedId } from "../batch/batch.ts";
import type { Clock } from "../clock.ts";
import type { MemoryBudget } from "../resources/memory-budget.ts";

/** The bindings and variables of every request. */
export interface AppEnv {
  Bindings: HttpBindings & {
    /** The caller, where the server has found out who it is: a request of the web page, passed on to the API. */
    caller?: Caller;
    /** The id of the request that the web page passes on, so that all who speak of it have the same. */
    requestId?: string;
    /** Whether the server asks itself, for its web page. Such a request has no connection. */
    isInternal?: boolean;
    /** Whether the request counts among those of its project. One poll serves many open pages, so it does not. */
    isUncounted?: boolean;
  };
  Variables: {
    requestId: string;
    clock: Clock;
    /** The start of the request, as elapsed time. */
    startedAtMs: number;
    /** The project whose files and batches the request may use. */
    project: string;
    caller: Caller;
    /** Says whether the key of the caller is still good: a request may take longer than its key lives. */
    isKeyGood: () => boolean;
    /** The id of the object that the request has made, for the audit log. */
    objectId?: string | undefined;
    /** What the request has done to a file beside another object, for the audit log. */
    fileChange?: FileChange | undefined;
    /** Resolves once the request may begin, or go on after a wait, within the time of a turn of the event loop. */
    turn: () => Promise<void>;
    /** The budget for the memory of bodies. */
    memory: MemoryBudget;
    /** The id of the upstream's answer, as the upstream's own log has it. */
    upstreamRequestId?: string | undefined;
  };
}

export interface FileChange {
  readonly action: "file.create" | "file.delete";
  readonly id: string;
}

export type AppContext = Context<AppEnv>;

/** Returns the key of the thing that the path names, within the project of the request. */
export const scopedIdOf = <Kind extends string>(c: AppContext): ScopedId<Kind> => ({
  project: c.get("project"),
  id: (c.req.param("id") ?? "") as UntrustedId<Kind>,
});
