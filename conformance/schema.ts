/**
 * Lets schemathesis make good and bad requests from openapi.yaml, against a server of their own. One run covers all
 * operations. Its report names the operations whose answers differ from the document.
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parse } from "yaml";
import { dataRoot } from "../test/support/data-root.ts";
import { startUpstream } from "../test/support/upstream.ts";
import type { Python } from "./python.ts";
import { Server } from "./server.ts";

const DOCUMENT = fileURLToPath(new URL("../openapi.yaml", import.meta.url));

interface Operation {
  readonly id: string;
  /** The name of the operation in the report. */
  readonly label: string;
}

type Paths = Record<string, Record<string, { operationId?: string }>>;

export const OPERATIONS: readonly Operation[] = Object.entries(
  (parse(readFileSync(DOCUMENT, "utf8")) as { paths: Paths }).paths,
).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, { operationId }]) => ({
    id: operationId ?? "",
    label: `${method.toUpperCase()} ${path}`,
  })),
);

const CHECKS = [
  "not_a_server_error",
  "status_code_conformance",
  "content_type_conformance",
  "response_headers_conformance",
  "response_schema_conformance",
  "negative_data_rejection",
  "unsupported_method",
  "allow_header_conformance",
];

/** The fields of the report that are read. */
interface Report {
  readonly complete: boolean;
  readonly operations: {
    readonly selected: number;
    readonly tested: number;
    readonly errored: number;
  };
  readonly failures: readonly { readonly title: string; readonly operations: readonly string[] }[];
  readonly errors: readonly unknown[];
  readonly test_cases: { readonly generated: number };
}

const FEWEST_CASES = 300;

interface SchemaOptions {
  readonly seed: number;
  /** The run in the name of the log, because another one may be under way. */
  readonly runName: string;
  /** They are made for each operation, beside those that the document and the bounds of its schemas ask for. */
  readonly maxExamples: number;
}

export class SchemaRun {
  readonly #seed: number;
  readonly #maxExamples: number;
  /** The output of schemathesis, with the requests of every failure. */
  readonly #logPath: string;
  #report: Promise<Report> | null = null;

  constructor({ seed, runName, maxExamples }: SchemaOptions) {
    this.#seed = seed;
    this.#maxExamples = maxExamples;
    const log = `../node_modules/.cache/conformance-schemathesis-${runName}.log`;
    this.#logPath = fileURLToPath(new URL(log, import.meta.url));
  }

  begin(python: Python): void {
    this.#report = this.#run(python);
    // The check that awaits the result gets the error. Without this handler, the rejection would end the process
    // before.
    this.#report.catch(() => {});
  }

  async assertComplete(): Promise<void> {
    const { complete, operations, errors, test_cases } = await this.#result();
    assert.deepEqual(errors, []);
    assert.equal(complete, true);
    const expected = { selected: OPERATIONS.length, tested: OPERATIONS.length, errored: 0 };
    const { selected, tested, errored } = operations;
    assert.deepEqual({ selected, tested, errored }, expected);
    assert.ok(test_cases.generated >= FEWEST_CASES, `only ${test_cases.generated} requests`);
  }

  async assertHolds(label: string): Promise<void> {
    const { failures } = await this.#result();
    const found = failures.filter(({ operations }) => operations.includes(label));
    assert.deepEqual(
      found.map(({ title }) => title),
      [],
      `${label}: the requests are in ${this.#logPath}`,
    );
  }

  #result(): Promise<Report> {
    if (this.#report === null) throw new Error("schemathesis was not started");
    return this.#report;
  }

  async #run(python: Python): Promise<Report> {
    const folder = await mkdtemp(join(dataRoot(), "batchd-schemathesis-"));
    try {
      await using upstream = await startUpstream();
      const upstreams = [{ name: "any", base_url: upstream.url, models: ["*"] }];
      await using server = await Server.start({ name: "schema", folder, config: { upstreams } });
      const reportPath = join(folder, "report.json");
      const places = { folder, logPath: this.#logPath };
      await python.program("st", this.#arguments(server.url, reportPath), places);
      return JSON.parse(await readFile(reportPath, "utf8")) as Report;
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }

  #arguments(url: string, reportPath: string): string[] {
    return [
      "run",
      DOCUMENT,
      "--url",
      url,
      "--checks",
      CHECKS.join(","),
      "--mode",
      "all",
      "--phases",
      "examples,coverage,fuzzing",
      "--max-examples",
      String(this.#maxExamples),
      "--seed",
      String(this.#seed),
      "--continue-on-failure",
      "--no-shrink",
      "--generation-database",
      "none",
      "--report",
      "json",
      "--report-json-path",
      reportPath,
      "--no-color",
      "--warnings",
      "off",
    ];
  }
}
