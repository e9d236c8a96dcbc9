/**
 * Mounts the routes under `/v1`. Each asks for the scope that `contract/scope.ts` names, before anything of the request
 * is read. A mount function gets this in place of the app, so that it cannot mount a route without one.
 */
import type { Context, Hono, MiddlewareHandler } from "hono";
import type { Projects } from "../api/projects.ts";
import { OPEN_WITHOUT_KEYS, type Scope, type ScopedPath, scopesOf } from "../contract/scope.ts";
import { PublicError } from "../errors.ts";
import type { AppEnv } from "./context.ts";

type Answering<Path extends string> = (c: Context<AppEnv, Path>) => Response | Promise<Response>;

export interface Routes {
  get<Path extends ScopedPath<"GET">>(path: Path, answer: Answering<Path>): void;
  post<Path extends ScopedPath<"POST">>(path: Path, answer: Answering<Path>): void;
  delete<Path extends ScopedPath<"DELETE">>(path: Path, answer: Answering<Path>): void;
}

export interface RoutesDeps {
  readonly projects: Pick<Projects, "assertTakesData">;
}

export const routesOn = (app: Hono<AppEnv>, deps: RoutesDeps): Routes => ({
  get: (path, answer) => void app.get(path, needs("GET", path, deps), answer),
  post: (path, answer) => void app.post(path, needs("POST", path, deps), answer),
  delete: (path, answer) => void app.delete(path, needs("DELETE", path, deps), answer),
});

function needs(method: string, path: string, { projects }: RoutesDeps): MiddlewareHandler<AppEnv> {
  const scopes = scopesOf(method, path);
  const isOpenWithoutKeys = OPEN_WITHOUT_KEYS.includes(`${method} ${path}`);
  return async (c, next) => {
    const { scopes: held, keyName } = c.get("caller");
    if (isOpenWithoutKeys && keyName === null) return next();
    if (!scopes.some((scope) => held.includes(scope))) {
      throw missingScope(scopes, keyName === null ? MAKE_A_KEY : ASK_FOR_A_KEY);
    }
    if (scopes.includes("write")) projects.assertTakesData(c.get("project"), c.get("startedAtMs"));
    await next();
  };
}

/** Refuses a request that needs another scope because of what it asks for. */
export function assertScope(c: Context<AppEnv>, scope: Scope): void {
  const { scopes, keyName } = c.get("caller");
  if (scopes.includes(scope)) return;
  throw missingScope([scope], keyName === null ? MAKE_A_KEY : ASK_FOR_A_KEY);
}

const ASK_FOR_A_KEY = "Ask the operator of this server for a key that has it.";
/** Without keys everyone may do everything but administer the server. */
const MAKE_A_KEY =
  "This server has no keys yet. On its machine, `batchd keys create --name operator --scopes admin,read,write`, with the --config or --data-dir of the server, makes the first one; from then on every request needs a key.";

const missingScope = (scopes: readonly Scope[], advice: string) =>
  new PublicError(
    "missing_scope",
    `You have insufficient permissions for this operation. Missing scopes: ${scopes.join(" or ")}. ${advice}`,
  );
