/** Reads the names of uploaded files. */
import { readableText } from "../contract/text.ts";

/** A word of RFC 2047, and the space between two of them. */
const ENCODED_WORD = /=\?utf-8\?([bq])\?([^?]*)\?=(?:[ \t]+(?==\?utf-8\?))?/gi;

/**
 * Reads a name from the header of a part. Clients of Java and .NET encode one there that is not ASCII. Browsers and the
 * SDKs write `%22` for a quotation mark.
 */
export const filenameInHeader = (text: string): string =>
  filenameInPath(
    readableText(
      text
        .replaceAll("%22", '"')
        .replace(ENCODED_WORD, (_word, encoding: string, content: string) =>
          encoding.toLowerCase() === "b"
            ? Buffer.from(content, "base64").toString()
            : fromQuotedPrintable(content),
        ),
    ),
  );

/** Returns the name without its folders. */
export function filenameInPath(path: string): string {
  const name = path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1);
  return ["", ".", ".."].includes(name) ? "upload" : name;
}

function fromQuotedPrintable(text: string): string {
  const bytes = text
    .replaceAll("_", " ")
    .replaceAll(/=([0-9a-f]{2})/gi, (_escape, hex: string) =>
      String.fromCharCode(Number.parseInt(hex, 16)),
    );
  return Buffer.from(bytes, "latin1").toString();
}
