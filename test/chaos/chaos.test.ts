import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { startPostgres } from "../support/postgres.ts";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { runChaos } from "./chaos.ts";
import { SMALL } from "./sizes.ts";

const postgres = forAllTests(await startPostgres("the chaos run"));
const s3 = forAllTests(postgres !== null && hasS3Server() ? await startS3Server() : null);

describe.skipIf(postgres === null || postgres.server === null || s3 === null)("a fleet", () => {
  test("loses and doubles no line, and keeps to the limits, while all its processes, its database and its bucket fail", async () => {
    const said: string[] = [];
    const seed = Math.floor(Math.random() * 100_000);
    const report = await runChaos({
      sizes: SMALL,
      seed,
      postgres: postgres!,
      s3: s3!,
      say: (text) => said.push(text),
    });
    expect(report.faults, `seed ${seed}:\n${said.join("\n")}`).toEqual([]);
    expect(Object.values(report.kills)).toEqual([2, 2, 2]);
  });
});
