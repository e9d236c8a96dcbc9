/**
 * Looks for damage in a whole database file. A process of its own does it: a large file takes minutes, for which the event
 * loop must not wait, and a thread that is inside of SQLite would hold up the end of the server.
 */
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { Finding } from "./integrity-process.ts";

/** The build compiles the program beside this file. */
const PROGRAM = fileURLToPath(
  new URL(
    import.meta.url.endsWith(".ts") ? "./integrity-process.ts" : "./integrity-process.js",
    import.meta.url,
  ),
);

/** Resolves to null if the look could not be made, or when `signal` aborts. */
export const checkIntegrity = (path: string, signal?: AbortSignal): Promise<Finding | null> =>
  new Promise((resolve) => {
    // It needs no secret of the server, and must not open its ports for debugging again.
    const options = { env: {}, killSignal: "SIGKILL", ...(signal && { signal }) } as const;
    execFile(process.execPath, [PROGRAM, path], options, (_error, found) =>
      resolve(found === "damaged" || found === "readable" ? found : null),
    );
  });
