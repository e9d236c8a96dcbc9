/** Writes into the operations of a group what they have in common: their tag, the scopes they ask for, and their failures. */
import type { ZodOpenApiPathsObject } from "zod-openapi";
import { COMMON_FAILURES } from "./openapi-answers.ts";
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

/** Completes the operations under one tag. Those that ask for no scope have no failures but their own. */
export const operationsOf = (tag: string, paths: ZodOpenApiPathsObject): ZodOpenApiPathsObject =>
  Object.fromEntries(
    Object.entries(paths).map(([path, item]) => {
      const completed = METHODS.flatMap((method) => {
        if (item[method] === undefined) return [];
        const { operationId, ...operation } = item[method];
        const scopes = SCOPES_BY_ROUTE.get(unnamed(`${method.toUpperCase()} ${path}`));
        const guarded = scopes && {
          responses: { ...operation.responses, ...COMMON_FAILURES },
          security: securityOf(scopes),
        };
        return [[method, { operationId, tags: [tag], ...operation, ...guarded }]];
      });
      return [path, { ...item, ...Object.fromEntries(completed) }];
    }),
  );
