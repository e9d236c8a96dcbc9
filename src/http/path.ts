/** Where a request goes: clients write the same route in several ways. */

/** Of the address as the client wrote it, without what may be secret in a query. */
export const pathOf = (url: string): string => /^[^/]*\/\/[^/?#]*([^?#]*)/.exec(url)?.[1] ?? "/";

const singleSlashed = (url: string) => pathOf(url).replaceAll(/\/{2,}/g, "/");

/** The path of the route that is meant. */
export const canonicalPath = (request: Request): string =>
  singleSlashed(request.url)
    .replace(/(?<=.)\/$/, "")
    .replace(/^\/openai(?:\/deployments\/[^/]+)?(?:\/v1)?(?=\/|$)/, "/v1");

/** The deployment that Azure's clients put into the path; null without one. */
export function deploymentIn(url: string): string | null {
  const name = /^\/openai\/deployments\/([^/]+)/.exec(singleSlashed(url))?.[1];
  if (name === undefined) return null;
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}
