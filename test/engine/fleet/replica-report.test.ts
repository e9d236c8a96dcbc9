import { expect, test } from "vitest";
import { decodeReport, encodeReport } from "../../../src/engine/fleet/replica-report.ts";
import { Fleet } from "../../support/fleet.ts";
import { forAllTests } from "../../support/for-all-tests.ts";
import { query, sharePostgres } from "../../support/postgres.ts";
import { startUpstream } from "../../support/upstream.ts";

const postgres = forAllTests(await sharePostgres("the report of a replica"));

test("a report of another format is skipped", () => {
  const report = {
    isWorker: true,
    canWrite: true,
    targets: [],
    routes: [],
    commonFailures: [],
  };
  expect(decodeReport(encodeReport(report))).toEqual(report);
  expect(decodeReport("{}")).toBeNull();
  expect(decodeReport('{"format":0,"isWorker":true}')).toBeNull();
});

test.skipIf(postgres === null)(
  "a report stays small where a server lists models with very long names",
  async () => {
    const modelNames = Array.from({ length: 200 }, (_, i) => `${i}-${"x".repeat(5_000)}`);
    await using upstream = await startUpstream({ modelNames });
    const databaseUrl = await postgres!.createDatabase();
    await using fleet = new Fleet({ databaseUrl });
    const { openai } = await fleet.api({ upstream });
    const { data } = await openai.models.list();
    expect(data.map(({ id }) => id)).toEqual(modelNames);
    const reports = () => query<{ report: string }>(databaseUrl, "select report from replicas");
    await expect.poll(async () => (await reports())[0]?.report).toContain(`"listed":["0-x`);
    expect((await reports())[0]?.report.length).toBeLessThan(64 * 1024);
  },
);
