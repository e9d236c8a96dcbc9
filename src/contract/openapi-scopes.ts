/** Writes into the document which scope each route asks for. */
import type { ZodOpenApiPathsObject } from "zod-openapi";
import { ROUTE_SCOPES } from "./scope.ts";

const METHODS = ["get", "post", "delete"] as const;

/** Returns a route without the names of its parameters, which the document spells in its own way. */
const unnamed = (route: string) => route.replaceAll(/\{\w+\}|:\w+(?:\{.+?\})?/g, "{}");

const SCOPES_BY_ROUTE: ReadonlyMap<string, readonly string[]> = new Map(
  Object.entries(ROUTE_SCOPES).map(([route, scopes]) => [unnamed(route), scopes]),
);

/** One of the schemes is enough, with one of the scopes. The empty one stands for a server without keys. */
const securityOf = (scopes: readonly string[]) => [
  ...scopes.flatMap((scope) => [{ key: [scope] }, { azureKey: [scope] }]),
  {},
];

export const withScopes = (paths: ZodOpenApiPathsObject): ZodOpenApiPathsObject =>
  Object.fromEntries(
    Object.entries(paths).map(([path, item]) => {
      const secured = METHODS.flatMap((method) => {
        const operation = item[method];
        const scopes = SCOPES_BY_ROUTE.get(unnamed(`${method.toUpperCase()} ${path}`));
        if (operation === undefined || scopes === undefined) return [];
        return [[method, { ...operation, security: securityOf(scopes) }] as const];
      });
      return [path, { ...item, ...Object.fromEntries(secured) }];
    }),
  );
