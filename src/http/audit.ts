/**
 * Records in the audit log who did what. Every route has its row, so a new one cannot be forgotten: it does not compile. Lists and
 * states are not recorded, because clients ask for them every second; a refusal of any request is.
 */
import type { MiddlewareHandler } from "hono";
import type { ROUTE_SCOPES } from "../contract/scope.ts";
import type { AuditEntry } from "../telemetry/audit-log.ts";
import type { AppContext, AppEnv } from "./context.ts";
import { routeOf, statusOf } from "./track.ts";

/** The names of what is recorded; null for what is not. */
export const ACTIONS: Readonly<Record<keyof typeof ROUTE_SCOPES, string | null>> = {
  "GET /v1/files": null,
  "POST /v1/files": "file.create",
  "GET /v1/files/:id": null,
  "DELETE /v1/files/:id": "file.delete",
  "GET /v1/files/:id/content": "file.download",
  "POST /v1/uploads": "upload.create",
  "POST /v1/uploads/:id/parts": "upload.add_part",
  "POST /v1/uploads/:id/complete": "upload.complete",
  "POST /v1/uploads/:id/cancel": "upload.cancel",
  "GET /v1/batches": null,
  "POST /v1/batches": "batch.create",
  "GET /v1/batches/:id": null,
  "POST /v1/batches/:id": "batch.update",
  "DELETE /v1/batches/:id": "batch.delete",
  "GET /v1/batches/:id/output": "batch.read_output",
  "GET /v1/batches/:id/errors": "batch.read_errors",
  "GET /v1/batches/:id/lines": "batch.read_lines",
  "GET /v1/batches/:id/failures": "batch.read_failures",
  "GET /v1/batches/:id/progress": null,
  "GET /v1/batches/:id/run": null,
  "POST /v1/batches/:id/cancel": "batch.cancel",
  "POST /v1/batches/:id/pause": "batch.pause",
  "POST /v1/batches/:id/resume": "batch.resume",
  "POST /v1/batches/:id/deliveries": "delivery.create",
  "GET /v1/batches/:id/deliveries": null,
  "GET /v1/batches/:id/deliveries/:delivery": null,
  "POST /v1/batches/:id/deliveries/:delivery/cancel": "delivery.cancel",
  "GET /v1/usage": null,
  "GET /v1/models": null,
  "GET /v1/models/:model{.+}": null,
  "DELETE /v1/models/:model{.+}": "model.delete",
  "POST /v1/chat/completions": null,
  "POST /v1/completions": null,
  "POST /v1/embeddings": null,
  "POST /v1/responses": null,
  "POST /v1/moderations": null,
  "POST /v1/admin/keys": "key.create",
  "GET /v1/admin/keys": "key.list",
  "GET /v1/admin/keys/:id": "key.read",
  "DELETE /v1/admin/keys/:id": "key.revoke",
  "POST /v1/admin/projects": "project.change",
  "GET /v1/admin/projects": "project.list",
  "GET /v1/admin/projects/:id": "project.read",
  "DELETE /v1/admin/projects/:id": "project.delete",
  "GET /v1/admin/upstreams": null,
};

const UNAUTHENTICATED = 401;
const FORBIDDEN = 403;

export interface AuditDeps {
  readonly audit: { record(entry: AuditEntry): void };
}

/** Records a request once it is answered. */
export const auditRequests =
  ({ audit }: AuditDeps): MiddlewareHandler<AppEnv> =>
  async (c, next) => {
    await next();
    const status = statusOf(c);
    const outcome = outcomeOf(status);
    const action = actionOf(c);
    if (action === null && outcome !== "denied") return;
    // A caller is missing when its key was refused.
    const caller: AppContext["var"]["caller"] | undefined = c.get("caller");
    const entry: AuditEntry = {
      request_id: c.get("requestId"),
      action: action ?? `${c.req.method} ${routeOf(c)}`,
      object:
        c.get("objectId") ??
        (c.req.param("delivery") ?? c.req.param("id"))?.slice(0, OBJECT_MAX_LENGTH) ??
        null,
      outcome,
      status,
      project: caller?.project ?? null,
      key_id: caller?.keyId ?? null,
      key_name: caller?.keyName ?? null,
      address: c.env.incoming.socket.remoteAddress ?? null,
    };
    audit.record(entry);
    const change = c.get("fileChange");
    if (change !== undefined) audit.record({ ...entry, action: change.action, object: change.id });
  };

/** The longest id in an entry: a client may write anything in the place of one. */
const OBJECT_MAX_LENGTH = 128;

const actionOf = (c: AppContext): string | null => {
  const method = c.req.method === "HEAD" ? "GET" : c.req.method;
  return (ACTIONS as Readonly<Record<string, string | null>>)[`${method} ${routeOf(c)}`] ?? null;
};

function outcomeOf(status: number): AuditEntry["outcome"] {
  if (status === UNAUTHENTICATED || status === FORBIDDEN) return "denied";
  if (status >= 500) return "failed";
  return status >= 400 ? "refused" : "done";
}
