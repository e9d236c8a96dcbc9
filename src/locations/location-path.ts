/**
 * Checks paths of clients below a location. A path that passes has no part with a meaning of its own in any place: in a
 * file system, on a share of another system, in an address, in a repository.
 */

/** A path that {@link parseLocationPath} has checked: parts with `/` between them. */
export type LocationPath = string & { readonly __checked: "location path" };

export type ParsedPath =
  | { readonly ok: true; readonly path: LocationPath }
  /** `problem` continues a sentence that names the path. */
  | { readonly ok: false; readonly problem: string };

const MAX_PATH_BYTES = 1_024;
/** The longest name in most file systems. */
const MAX_PART_BYTES = 255;

/** Matches what a reader cannot see, what is not a character, and line breaks. */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Cn}\p{Co}\p{Zl}\p{Zp}]/u;

export function parseLocationPath(text: string): ParsedPath {
  const problem = problemOf(text);
  return problem === null ? { ok: true, path: text as LocationPath } : { ok: false, problem };
}

function problemOf(text: string): string | null {
  if (text === "") return "is empty";
  if (Buffer.byteLength(text) > MAX_PATH_BYTES) return `is longer than ${MAX_PATH_BYTES} bytes`;
  if (INVISIBLE.test(text)) return "has characters that are not visible";
  if (text.startsWith("/")) return "begins with '/': it is relative to the location";
  if (text.includes("\\")) return "has a backslash: parts have '/' between them";
  for (const part of text.split("/")) {
    if (part === "") return "has an empty part";
    if (part.startsWith(".")) return "has a part that begins with a dot";
    // Shares of Windows drop such an end, so two paths would be one.
    if (/[. ]$/.test(part)) return "has a part with a space or dot at its end";
    if (part.startsWith(" ")) return "has a part that begins with a space";
    if (Buffer.byteLength(part) > MAX_PART_BYTES) {
      return `has a part that is longer than ${MAX_PART_BYTES} bytes`;
    }
  }
  return null;
}
