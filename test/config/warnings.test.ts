/** What a start and `batchd check` warn of, besides what the tests of the command hold. */
import { expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { parseConfig } from "../../src/config/config.ts";
import { configWarnings } from "../../src/config/warnings.ts";
import { lookAtFolders } from "../../src/runtime/location-folders.ts";

const upstreams = [{ name: "gpu", base_url: "http://127.0.0.1:8000/v1", models: ["*"] }];

function warningsOf(values: object): string[] {
  const parsed = parseConfig({ upstreams, ...values });
  if (!parsed.ok) throw new Error(parsed.problems.join("\n"));
  return configWarnings(parsed.config, { role: "all", isOpen: false });
}

test.each([
  ["~/batchd", "~"],
  ["$HOME/batchd", "$HOME"],
  ["$data", "$data"],
])("a data folder is warned of that only a shell would take for another one: %s", (path, word) => {
  const warned = `as only a shell takes ${word} for another folder: write data_dir out`;
  expect(warningsOf({ data_dir: path })).toEqual([expect.stringContaining(warned)]);
});

test.each(["./data", "/var/lib/batchd", "data$1", "a~b"])("another one is not: %s", (path) => {
  expect(warningsOf({ data_dir: path })).toEqual([]);
});

test("a quota of cost is warned of while there are no prices that it is counted by", () => {
  const projects = [
    { name: "search", quotas: { cost_per_month: "100.00" } },
    { name: "free", quotas: { open_batches: 5 } },
  ];
  expect(warningsOf({ projects })).toEqual([
    "cost_per_month of the project search limits nothing, as no prices are configured (prices)",
  ]);
  const prices = [{ model: "*", currency: "USD", input: "1" }];
  expect(warningsOf({ projects, prices })).toEqual([]);
});

test.each([
  ["http://localhost:4318", 1],
  ["http://localhost:4318/", 1],
  ["http://localhost:4318/v1/traces", 0],
  ["https://traces.example/api/otlp?token=a", 0],
])("a receiver of traces is warned of where its address has no path: %s", (endpoint, count) => {
  expect(warningsOf({ tracing: { endpoint } })).toHaveLength(count);
});

test("an audit log in a folder that is not there is warned of: none of its lines could be written", async () => {
  const values = (file: string) => ({ data_dir: "/nonexistent/batchd/data", audit: { file } });
  const warningsFor = async (file: string) =>
    (await lookAtFolders(parseConfig(values(file)), systemClock)).warnings;
  expect(await warningsFor("/nonexistent/log/audit.jsonl")).toEqual([
    "there is no folder /nonexistent/log for audit.file: is a share not mounted?",
  ]);
  expect(await warningsFor("/etc/audit.jsonl")).toEqual([]);
  expect(await warningsFor("audit.jsonl")).toEqual([]);
  // The first start makes the data folder.
  for (const path of ["/nonexistent/batchd/data", "/nonexistent/batchd"]) {
    expect(await warningsFor(`${path}/audit.jsonl`)).toEqual([]);
  }
  expect(await warningsFor("/nonexistent/batchd/data/log/audit.jsonl")).toHaveLength(1);
});
