import { expect, test } from "vitest";
import { decodeReport, encodeReport } from "../../src/engine/replica-report.ts";

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
