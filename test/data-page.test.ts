/** The commands and programs of docs/data.md, in their order, as a reader would paste them. */
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { putCommand } from "./support/paste.ts";
import { hasProgram } from "./support/programs.ts";
import { startTestService } from "./support/service.ts";
import { temporaryFolder } from "./support/store-builders.ts";
import { startUpstream } from "./support/upstream.ts";

const PAGE = readFileSync(new URL("../docs/data.md", import.meta.url), "utf8");
const SHELLS: Readonly<Record<string, string>> = { bash: "bash", python: "python3" };

const blocks = [...PAGE.matchAll(/```(bash|python)\n([\s\S]*?)```/g)].map(
  ([, language = "", code = ""]) => ({ language, code }),
);

test.skipIf(!hasProgram("python3", "the tests of docs/data.md"))(
  "docs/data.md leads from a table to the same table with answers",
  async () => {
    await using upstream = await startUpstream();
    await using service = await startTestService({ upstreamUrl: upstream.url });
    using temporary = temporaryFolder("batchd-data-");
    const folder = temporary.path;
    const env = { ...process.env, ...putCommand(folder), BATCHD_URL: service.url };
    for (const { language, code } of blocks) {
      await promisify(execFile)(SHELLS[language] ?? language, ["-c", code], { cwd: folder, env });
    }
    const judged = readFileSync(join(folder, "judged.csv"), "utf8");
    expect(judged.split("\r\n")[0]).toBe("id,review,answer");
    expect(judged).toMatch(
      /^1,"The room was clean, the staff kind.","echo: [^"]*The room was clean/m,
    );
    expect(judged).toMatch(/^3,"It was fine, I suppose.","echo: [^"]*It was fine/m);
  },
);
