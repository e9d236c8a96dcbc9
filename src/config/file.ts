/**
 * Reads the configuration file into plain values, and replaces `${NAME}` by the environment. What looks like a variable and
 * is none must never become a value: it would be a secret that the file shows.
 *
 * The path may name anything: a program by mistake, a folder, YAML that refers to itself. The operator gets one
 * sentence for each. No file may take more memory than {@link MAX_BYTES} allows.
 */
import { isUtf8 } from "node:buffer";
import { closeSync, openSync, readSync } from "node:fs";
import { parseDocument } from "yaml";
import { pathText, yamlFault } from "./problems.ts";

export type Environment = Readonly<Record<string, string | undefined>>;

/** The largest file, far above any real configuration. */
const MAX_BYTES = 4 * 1024 * 1024;
/** The number of faults to report, because a file that is not YAML has one in every line. */
const MAX_FAULTS = 5;
const NUL = 0;

/** Reads the file. Each problem adds a sentence to `problems`. */
export function readConfigFile(path: string, env: Environment, problems: string[]): unknown {
  try {
    const bytes = readBytes(path);
    if (bytes.length > MAX_BYTES) {
      problems.push(`${path} is longer than ${MAX_BYTES} bytes: is it a configuration file?`);
    } else if (!isUtf8(bytes) || bytes.includes(NUL)) {
      problems.push(`${path} is not a text file in UTF-8`);
    } else {
      return expand(
        parse(path, bytes.toString(), problems),
        { env, problems },
        { path: [], within: [] },
      );
    }
  } catch (cause) {
    problems.push(`cannot read ${path}: ${(cause as Error).message}`);
  }
  return {};
}

/** Reads in pieces, because the file may be a pipe, or have no end. */
function readBytes(path: string): Buffer {
  const pieces: Buffer[] = [];
  const file = openSync(path, "r");
  try {
    for (let total = 0; total <= MAX_BYTES; ) {
      const piece = Buffer.alloc(64 * 1024);
      const byteCount = readSync(file, piece);
      if (byteCount === 0) break;
      total += byteCount;
      pieces.push(piece.subarray(0, byteCount));
    }
  } finally {
    closeSync(file);
  }
  return Buffer.concat(pieces);
}

function parse(path: string, text: string, problems: string[]): unknown {
  const document = parseDocument(text, { logLevel: "error" });
  // YAML may say two things of one place. The first is the one to mend.
  const faults = document.errors
    .filter(({ pos }, at, all) => pos[0] !== all[at - 1]?.pos[0])
    .map(({ message }) => `${path}: ${yamlFault(message)}`);
  problems.push(...faults.slice(0, MAX_FAULTS));
  if (faults.length > 0) return {};
  try {
    return document.toJS() ?? {};
  } catch (cause) {
    // The aliases multiply: without this check a few lines would fill the memory.
    problems.push(`${path}: ${yamlFault((cause as Error).message)}`);
    return {};
  }
}

interface Expansion {
  readonly env: Environment;
  readonly problems: string[];
}

/** The path of a value, and the lists and mappings around it. */
interface Place {
  readonly path: readonly (string | number)[];
  readonly within: readonly object[];
}

/** Replaces `${NAME}` in every string by the environment. */
function expand(value: unknown, expansion: Expansion, { path, within }: Place): unknown {
  if (typeof value === "string") return expandText(value, expansion, path);
  if (typeof value !== "object" || value === null) return value;
  if (within.includes(value)) {
    expansion.problems.push(`${pathText(path)}: an alias refers to what it is in`);
    return null;
  }
  const inner = (item: unknown, step: string | number) =>
    expand(item, expansion, { path: [...path, step], within: [...within, value] });
  if (Array.isArray(value)) return value.map(inner);
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, inner(item, key)]));
}

function expandText(
  text: string,
  { env, problems }: Expansion,
  path: readonly PropertyKey[],
): string {
  // A secret may look like one, and is not repeated.
  if (BARE.test(text)) {
    problems.push(`${pathText(path)}: a variable is written \${NAME}, and not $NAME`);
  }
  return text.replaceAll(VARIABLE, (whole, variable: string | undefined) => {
    if (variable === undefined) {
      problems.push(
        `${pathText(path)}: after "\${" stands the name of a variable alone, as in \${NAME}: there are no defaults`,
      );
      return whole;
    }
    const found = env[variable];
    if (found !== undefined) return found;
    problems.push(`${pathText(path)}: the environment variable ${variable} is not set`);
    return whole;
  });
}

const VARIABLE = /\$\{(?:(\w+)\})?/g;
/** A whole text as a shell takes it for a variable. As a key of clients it would be one that the file shows to everyone. */
const BARE = /^\$[A-Z_][A-Z0-9_]*$/;
