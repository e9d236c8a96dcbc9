/** Serves the commands that need no server: reads what they take from a configuration, and their files. */

import { loadConfig } from "../config/config.ts";
import type { Config } from "../config/schema.ts";
import { outputTaken } from "../terminal/standard-streams.ts";
import { LineSplitter, type SplitLine } from "../text/split.ts";
import { unpackedContent } from "./content.ts";
import { CommandFailure } from "./failure.ts";
import { explained, interruption } from "./interruption.ts";

export interface OfflineFlags {
  readonly config?: string;
}

/** Reads the configuration of the flag or of `BATCHD_CONFIG`; without one, the defaults count. */
export function configOf({ config }: OfflineFlags): Config {
  const loaded = loadConfig(config === undefined ? {} : { config });
  if (loaded.ok) return loaded.config;
  throw new CommandFailure(`the configuration has problems: ${loaded.problems.join("; ")}`);
}

/** Resolves to the exit code of a command that reads files alone. */
export function offline(act: (signal: AbortSignal) => Promise<number>): Promise<number> {
  const signal = interruption();
  return explained({ act: () => act(signal), signal });
}

interface Reading {
  readonly onLine: (line: SplitLine) => void;
  readonly onPiece?: (piece: Buffer) => void;
  readonly signal: AbortSignal;
}

/**
 * Calls `onLine` for each line that is not blank, and `onPiece` for each piece of the file, both unpacked. Waits for the reader of
 * what they write.
 */
export async function readLines(
  path: string,
  maxLineBytes: number,
  { onLine, onPiece, signal }: Reading,
): Promise<void> {
  const splitter = new LineSplitter(maxLineBytes, { start: 0, firstLine: 1 });
  for await (const piece of unpackedContent(path)) {
    signal.throwIfAborted();
    onPiece?.(piece);
    for (const line of splitter.push(piece)) {
      onLine(line);
      const taken = outputTaken(signal);
      if (taken === null) continue;
      await taken;
      signal.throwIfAborted();
    }
  }
  for (const line of splitter.end()) onLine(line);
}
