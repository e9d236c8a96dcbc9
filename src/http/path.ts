/** Normalises the path of a request, because clients write the same route in several ways. */

/** Returns the path as the client wrote it. The query is left out, because it may hold a secret. */
export const pathOf = (url: string): string => /^[^/]*\/\/[^/?#]*([^?#]*)/.exec(url)?.[1] ?? "/";

const singleSlashed = (url: string) => pathOf(url).replaceAll(/\/{2,}/g, "/");

/** Returns the path of the route that the request means. */
export const canonicalPath = (request: Request): string =>
  singleSlashed(request.url)
    .replace(/(?<=.)\/$/, "")
    .replace(/^\/openai(?:\/deployments\/[^/]+)?(?:\/v1)?(?=\/|$)/, "/v1");

/** Returns the deployment that Azure's clients put into the path; null without one. */
export function deploymentIn(url: string): string | null {
  const name = /^\/openai\/deployments\/([^/]+)/.exec(singleSlashed(url))?.[1];
  if (name === undefined) return null;
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}
