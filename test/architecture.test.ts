import { describe, expect, test } from "vitest";
import { RULES } from "./support/architecture-rules.ts";
import { readSources, type SourceFile } from "./support/source-tree.ts";

const tree = readSources("src", "test", "conformance", "bench", "examples", "scripts");
const names = Object.keys(RULES) as (keyof typeof RULES)[];

describe("in this tree", () => {
  test.each(names)("%s", (name) => expect(RULES[name](tree)).toEqual([]));
});

/** Files that break each rule, and what it says of them. */
const BREAKS: Record<
  keyof typeof RULES,
  readonly (readonly [path: string, text: string, said: string])[]
> = {
  "imports point down": [
    ["src/http/x.ts", 'import { a } from "../engine/engine.ts";', "http/x.ts → engine/engine.ts"],
    ["src/engine/x.ts", 'import type { a } from "../http/app.ts";', "engine/x.ts → http/app.ts"],
    ["src/batch/x.ts", 'export * from "../store/store.ts";', "batch/x.ts → store/store.ts"],
    ["src/contract/x.ts", 'import "../errors.ts";', "contract/x.ts → errors.ts"],
    [
      "src/store/postgres/x.ts",
      'import {\n  type a,\n  b,\n} from "../sqlite/store.ts";',
      "store/postgres/x.ts → store/sqlite/store.ts",
    ],
    ["src/http/y.ts", 'import { a } from "../config/config.ts";', "http/y.ts → config/config.ts"],
    [
      "src/engine/y.ts",
      'const a = await import("../runtime/runtime.ts");',
      "engine/y.ts → runtime/runtime.ts",
    ],
    ["src/clock.ts", 'import { a } from "./telemetry/log.ts";', "clock.ts → telemetry/log.ts"],
    ["src/helpers.ts", "", "src/helpers.ts has no layer"],
  ],
  "nothing imports in a circle": [
    ["src/batch/a.ts", 'import { b } from "./b.ts";\n', "batch/a.ts → batch/b.ts → batch/a.ts"],
    [
      "src/batch/b.ts",
      'import type { a } from "./a.ts";\n',
      "batch/a.ts → batch/b.ts → batch/a.ts",
    ],
  ],
  "no two folders import each other": [
    [
      "src/engine/dispatch/x.ts",
      'import type { a } from "../lease.ts";',
      "engine/ ↔ engine/dispatch/",
    ],
    [
      "src/upstream/capacity/x.ts",
      'import { a } from "../target.ts";',
      "upstream/ ↔ upstream/capacity/",
    ],
  ],
  "each package is imported where it belongs": [
    ["src/engine/x.ts", 'import { request } from "undici";', "engine/x.ts imports undici"],
    [
      "src/api/files.ts",
      'import { a } from "drizzle-orm/sqlite-core";',
      "api/files.ts imports drizzle-orm",
    ],
    ["src/batch/x.ts", 'import { z } from "zod";', "batch/x.ts imports zod"],
    ["src/http/x.ts", 'import leftPad from "left-pad";', "http/x.ts imports left-pad"],
    [
      "src/runtime/runtime.ts",
      'import { a } from "@hono/node-server/x";',
      "runtime/runtime.ts imports @hono/node-server",
    ],
  ],
  "the rules and the contract touch nothing outside": [
    ["src/batch/x.ts", 'import { readFileSync } from "node:fs";', "batch/x.ts imports node:fs"],
  ],
  "only config.ts reads the environment": [
    ["src/engine/x.ts", 'const a = process.env["A"];', "src/engine/x.ts: process.env"],
  ],
  "only main.ts ends the process": [
    ["src/cli/cli.ts", "process.exit(1);", "src/cli/cli.ts: process.exit"],
  ],
  "only clock.ts knows what time it is": [
    ["src/engine/x.ts", "const nowMs = Date.now();", "src/engine/x.ts: Date.now"],
    ["src/engine/x.ts", "const now = new Date();", "src/engine/x.ts: Date()"],
    ["src/engine/x.ts", "const now = new Date;", "src/engine/x.ts: new Date"],
    ["src/http/x.ts", "const ms = performance.now();", "src/http/x.ts: performance"],
    [
      "src/http/x.ts",
      'import { performance } from "node:perf_hooks";',
      "src/http/x.ts: performance",
    ],
    ["src/http/x.ts", "const ns = process.hrtime.bigint();", "src/http/x.ts: hrtime"],
    ["src/http/x.ts", "setTimeout(close, 10);", "src/http/x.ts: setTimeout"],
    ["src/http/x.ts", "const sweep = setInterval(sweepOnce, 50);", "src/http/x.ts: setInterval"],
    ["src/http/x.ts", "globalThis.setTimeout(close, 10);", "src/http/x.ts: globalThis.setTimeout"],
    [
      "src/telemetry/x.ts",
      'import { setTimeout as delay } from "node:timers/promises";',
      "src/telemetry/x.ts: setTimeout",
    ],
    ["src/api/x.ts", "const over = AbortSignal.timeout(10);", "src/api/x.ts: AbortSignal.timeout"],
  ],
  "a status is named only where batches are created, moved and stored": [
    ["src/engine/x.ts", 'if (status === "finalizing") go();', 'src/engine/x.ts: "finalizing"'],
  ],
  "SQL takes the names of statuses from the contract": [
    ["src/store/sqlite/x.ts", "sql`status = 'failed'`", "src/store/sqlite/x.ts: 'failed'"],
  ],
  "files stay short": [
    ["src/engine/x.ts", "a\n".repeat(401), "src/engine/x.ts has 401 lines"],
    ["test/x.test.ts", "a\n".repeat(401), "test/x.test.ts has 401 lines"],
    ["src/web/assets/x.css", "a\n".repeat(401), "src/web/assets/x.css has 401 lines"],
    ["x.config.ts", "a\n".repeat(401), "x.config.ts has 401 lines"],
  ],
  "each file of the engine has a test of its name": [
    ["src/engine/x.ts", "export const a = 1;", "src/engine/x.ts has no test"],
    ["src/engine/dispatch/y.ts", "class A {}", "src/engine/dispatch/y.ts has no test"],
  ],
  "no folder hides behind an index.ts": [["src/engine/index.ts", "", "src/engine/index.ts"]],
  "comments and names of tests name their subject": [
    ["src/http/x.ts", "/** Of the body, in bytes. */", "src/http/x.ts: Of"],
    ["src/http/y.ts", "/**\n * The length.\n * Of the body.\n */", "src/http/y.ts: Of"],
    ["src/http/z.ts", "/** Null for a request without a body. */", "src/http/z.ts: Null for"],
    ["src/api/x.ts", "const a = 1; // Whoever asks", "src/api/x.ts: Whoever"],
    ["src/batch/x.ts", "  // It has the size that of a line has.", "src/batch/x.ts: that of"],
    ["test/x.test.ts", 'test("a slot goes to nobody", () => {});', "test/x.test.ts: nobody"],
    ["test/y.test.ts", '  "whoever asks is told %s",', "test/y.test.ts: whoever"],
  ],
};

describe("a planted break is found, and nothing else", () => {
  test.each(names)("%s", (name) => {
    const planted = BREAKS[name].map(([path, text]): SourceFile => ({ path, text }));
    const untouched = tree.filter(({ path }) => planted.every((file) => file.path !== path));
    const said = new Set(BREAKS[name].map(([, , sentence]) => sentence));
    expect(new Set(RULES[name]([...untouched, ...planted]))).toEqual(said);
  });

  test("what is allowed is not reported", () => {
    const innocent: SourceFile[] = [
      {
        path: "src/http/x.ts",
        text: 'import type { Config } from "../config/schema.ts";\nimport { Hono } from "hono";',
      },
      {
        path: "src/engine/x.ts",
        text: '// process.env, once\n/* Date.now() */\nprocess.exitCode = 1;\nconst a = Buffer.from("../http/app.ts");',
      },
      { path: "src/engine/y.ts", text: "a\n".repeat(400) },
      { path: "src/engine/types.ts", text: "// const\nexport interface A {\n  const: 1;\n}" },
      ...["x", "y"].map((name) => ({ path: `test/engine/${name}.test.ts`, text: "" })),
      {
        path: "src/http/y.ts",
        text: '/**\n * The length\n * of the body.\n */\nconst a = "nobody, http://whoever";',
      },
    ];
    const broken = names.filter((name) => RULES[name](innocent).length > 0);
    expect(broken).toEqual([]);
  });
});
