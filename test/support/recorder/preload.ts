/**
 * Replaces modules for `node --import`: the sources of the server get the recorded modules of this folder, which call
 * the real ones. All other code keeps the real ones.
 */
import { registerHooks } from "node:module";

const SOURCES = new URL("../../../src/", import.meta.url).href;
const RECORDED: Readonly<Record<string, string>> = {
  "node:fs/promises": new URL("./fs-promises.ts", import.meta.url).href,
  "node:fs": new URL("./fs.ts", import.meta.url).href,
  "better-sqlite3": new URL("./better-sqlite3.ts", import.meta.url).href,
};

registerHooks({
  resolve(specifier, context, next) {
    const recorded = RECORDED[specifier];
    if (recorded === undefined || context.parentURL?.startsWith(SOURCES) !== true) {
      return next(specifier, context);
    }
    return { url: recorded, format: "module-typescript", shortCircuit: true };
  },
});
