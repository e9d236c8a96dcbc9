/** Judges the conditions that a client puts on content which it may have already: RFC 9110, section 13. */
import type { AppContext } from "./context.ts";

const TAGS = /(?:W\/)?"[^"]*"/g;

/**
 * Returns what the headers say of content with this strong tag. Conditions on dates do not count, because content has no
 * `Last-Modified`.
 */
export function judge(c: AppContext, etag: string): "met" | "failed" | "not_modified" {
  const expected = c.req.header("if-match");
  if (expected !== undefined && !tagsIn(expected).some((tag) => tag === "*" || tag === etag)) {
    return "failed";
  }
  const known = c.req.header("if-none-match");
  if (known === undefined) return "met";
  const isKnown = tagsIn(known).some((tag) => tag === "*" || tag === etag || tag === `W/${etag}`);
  return isKnown ? "not_modified" : "met";
}

const tagsIn = (header: string): readonly string[] =>
  header.trim() === "*" ? ["*"] : (header.match(TAGS) ?? []);
