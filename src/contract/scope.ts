/**
 * The scopes of keys, and the scope that each route asks for. The table exists so that no route can be open by mistake: a
 * route under `/v1` that is missing from it does not compile.
 */
import { z } from "zod";

export const SCOPES = ["read", "write", "interactive", "admin"] as const;
export const Scope = z.enum(SCOPES);
export type Scope = z.infer<typeof Scope>;

/** The scopes of a key that names none. A key has power over other keys only when its maker says so. */
export const DEFAULT_SCOPES: readonly Scope[] = ["read", "write", "interactive"];

/** The routes by method and path. A key needs one of the scopes that are listed. */
export const ROUTE_SCOPES = {
  "GET /v1/files": ["read"],
  "POST /v1/files": ["write"],
  "GET /v1/files/:id": ["read"],
  "DELETE /v1/files/:id": ["write"],
  "GET /v1/files/:id/content": ["read"],
  "POST /v1/uploads": ["write"],
  "POST /v1/uploads/:id/parts": ["write"],
  "POST /v1/uploads/:id/complete": ["write"],
  "POST /v1/uploads/:id/cancel": ["write"],
  "GET /v1/batches": ["read"],
  "POST /v1/batches": ["write"],
  "GET /v1/batches/:id": ["read"],
  "POST /v1/batches/:id": ["write"],
  "DELETE /v1/batches/:id": ["write"],
  "GET /v1/batches/:id/output": ["read"],
  "GET /v1/batches/:id/errors": ["read"],
  "GET /v1/batches/:id/lines": ["read"],
  "GET /v1/batches/:id/failures": ["read"],
  "GET /v1/batches/:id/progress": ["read"],
  "GET /v1/batches/:id/run": ["read"],
  "POST /v1/batches/:id/cancel": ["write"],
  "POST /v1/batches/:id/pause": ["write"],
  "POST /v1/batches/:id/resume": ["write"],
  "POST /v1/batches/:id/deliveries": ["write"],
  "GET /v1/batches/:id/deliveries": ["read"],
  "GET /v1/batches/:id/deliveries/:delivery": ["read"],
  "POST /v1/batches/:id/deliveries/:delivery/cancel": ["write"],
  // Who administers all projects sees what each of them used.
  "GET /v1/usage": ["read", "admin"],
  // Chat programs list the models before they send a request.
  "GET /v1/models": ["read", "interactive"],
  "GET /v1/models/:model{.+}": ["read", "interactive"],
  "DELETE /v1/models/:model{.+}": ["write"],
  "POST /v1/chat/completions": ["interactive"],
  "POST /v1/completions": ["interactive"],
  "POST /v1/embeddings": ["interactive"],
  "POST /v1/responses": ["interactive"],
  "POST /v1/moderations": ["interactive"],
  "POST /v1/admin/keys": ["admin"],
  "GET /v1/admin/keys": ["admin"],
  "GET /v1/admin/keys/:id": ["admin"],
  "DELETE /v1/admin/keys/:id": ["admin"],
  "POST /v1/admin/projects": ["admin"],
  "GET /v1/admin/projects": ["admin"],
  "GET /v1/admin/projects/:id": ["admin"],
  "DELETE /v1/admin/projects/:id": ["admin"],
  "GET /v1/admin/upstreams": ["admin"],
} as const satisfies Readonly<Record<string, readonly [Scope, ...Scope[]]>>;

/** The routes that need no scope on a server without keys, where everyone is the operator and `/metrics` says as much. */
export const OPEN_WITHOUT_KEYS: readonly string[] = ["GET /v1/admin/upstreams"];

/** The paths that have a row for the method. */
export type ScopedPath<Method extends string> = keyof typeof ROUTE_SCOPES extends infer Route
  ? Route extends `${Method} ${infer Path}`
    ? Path
    : never
  : never;

/** Returns the scopes of a route, of which a key needs one. A route without a row has none that a key could have. */
export const scopesOf = (method: string, path: string): readonly Scope[] =>
  (ROUTE_SCOPES as Readonly<Record<string, readonly Scope[]>>)[`${method} ${path}`] ?? [];
