/**
 * OpenSearch ML Commons as a client, from the published example files: the connector decides what is sent, byte by byte,
 * and the walk-through is walked to its end. docs/opensearch.md shows the same. What each call is answered is in
 * `conformance/facts/opensearch.ts`.
 */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import { BATCH_STATUSES } from "../../src/contract/batch.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { fill, readHttpFile } from "../support/http-file.ts";
import { type Connector, MlCommons, taskState } from "../support/ml-commons.ts";
import { type RawAnswer, RawConnection, rawRequest } from "../support/raw-http.ts";
import { startTestService } from "../support/service.ts";
import { type SeenRequest, startUpstream } from "../support/upstream.ts";

const EXAMPLES = fileURLToPath(new URL("../../examples/opensearch/", import.meta.url));
const exampleText = (name: string) => readFileSync(join(EXAMPLES, name), "utf8");
const connectorOf = (name: string) => JSON.parse(exampleText(name)) as Connector;

const connector = connectorOf("connector.json");
const explicit = connectorOf("connector-explicit.json");
const walkthrough = readHttpFile(join(EXAMPLES, "walkthrough.http"));
const config = parse(exampleText("batchd.yaml")) as { auth: object };

const upstream = forAllTests(await startUpstream());
const service = forAllTests(
  await startTestService({ upstreamUrl: upstream.url, config: { auth: config.auth } }),
);

const { key = "" } = walkthrough.variables;

/** A request of the walk-through to batchd, sent as it stands there. */
async function sendWalk(name: string, variables: Readonly<Record<string, string>> = {}) {
  const found = walkthrough.requests.get(name);
  if (found === undefined) throw new Error(`the walk-through has no request "${name}"`);
  const { method, url, headers, body } = fill(found, { ...variables, batchd: service.url, key });
  const bytes = Buffer.from(body.replaceAll("\n", "\r\n"));
  return fetch(url, { method, headers, ...(method === "GET" ? {} : { body: bytes }) });
}

const upload = async () => ((await (await sendWalk("upload")).json()) as { id: string }).id;

async function ended(ml: MlCommons): Promise<void> {
  const ends = ["completed", "failed", "cancelled", "expired"];
  const { id } = ml.remoteJob;
  await Promise.race(ends.map((end) => service.events.reached(`batch.${end}`, { batch: id })));
  expect((await ml.status()).status).toBe(200);
}

/** What must hold of every answer, whatever it says. */
function expectPlain({ status, headers, body }: RawAnswer): void {
  expect(headers["content-type"]).toBe("application/json");
  expect(headers["content-length"]).toBe(String(body.length));
  expect(headers["content-encoding"]).toBeUndefined();
  expect(headers["transfer-encoding"]).toBeUndefined();
  expect(headers["location"]).toBeUndefined();
  expect(Number(/timeout=(\d+)/.exec(headers["keep-alive"] ?? "")?.[1])).toBeGreaterThanOrEqual(65);
  expect(body).toMatch(/^\{[\x20-\x7e]*\}$/);
  // Its RestStatus knows these, and reads anything above 300 as a failure.
  expect([200, 400, 401, 404, 405, 409, 413, 422, 429, 500, 503]).toContain(status);
}

/** Texts at the top become parameters of the connector, so there may be no others than OpenAI's. */
const OPENAI_TEXTS = [
  "id",
  "object",
  "endpoint",
  "model",
  "input_file_id",
  "completion_window",
  "status",
  "output_file_id",
  "error_file_id",
];

function expectBatch(answer: RawAnswer): Record<string, unknown> {
  expectPlain(answer);
  expect(answer.status, answer.body).toBe(200);
  const batch = JSON.parse(answer.body) as Record<string, unknown>;
  expect(batch["id"]).toMatch(/^batch_[A-Za-z0-9]+$/);
  expect(BATCH_STATUSES).toContain(batch["status"]);
  const texts = Object.keys(batch).filter((name) => typeof batch[name] === "string");
  expect(texts.filter((name) => !OPENAI_TEXTS.includes(name))).toEqual([]);
  return batch;
}

describe("a connector takes a batch from its creation to its end", () => {
  test.each([
    ["with derived status and cancel", connector, false],
    ["with every action spelled out", explicit, false],
    ["with bodies in its GETs", explicit, true],
  ])("%s", async (_case, using_, sendsBodyWithGet) => {
    using ml = await MlCommons.open(using_, service.url, { sendsBodyWithGet });
    const input_file_id = await upload();

    const created = expectBatch(await ml.batchPredict({ input_file_id }));
    expect([created["status"], ml.taskState]).toEqual(["validating", "RUNNING"]);

    await ended(ml);
    const done = expectBatch(await ml.status());
    expect(ml.taskState).toBe("COMPLETED");
    expect(done["request_counts"]).toEqual({ total: 3, completed: 3, failed: 0 });
    expect(Object.keys(done)).toEqual(Object.keys(created));
  });

  test.each([
    ["with an empty body", connector],
    ["with {}", explicit],
  ])("or cancels it %s", async (_case, using_) => {
    upstream.hold();
    using ml = await MlCommons.open(using_, service.url);
    expectBatch(await ml.batchPredict({ input_file_id: await upload() }));

    const cancelled = expectBatch(await ml.cancel());
    expect(taskState(String(cancelled["status"]))).toBe("CANCELLING");

    upstream.release();
    await ended(ml);
    expect(ml.taskState).toBe("CANCELLED");
    expectBatch(await ml.cancel());
  });
});

describe("`predict` is answered while the caller waits", () => {
  const input = '["größe","world"]';

  test.each([
    ["derived", connector],
    ["spelled out", explicit],
  ])("by the model, with the connector whose actions are %s", async (_name, using_) => {
    using ml = await MlCommons.open(using_, service.url);
    const { status, headers, body } = await ml.predict({ input });
    expect([status, headers["content-type"]]).toEqual([200, "application/json"]);
    expect(JSON.parse(body)).toMatchObject({ data: [{ embedding: expect.any(Array) }] });
    const { path, body: sent } = upstream.seen.at(-1) as SeenRequest;
    expect(path).toBe("/v1/embeddings");
    expect(sent).toContain(input);
  });

  test("for the texts of the walk-through", async () => {
    using ml = await MlCommons.open(connector, service.url);
    const request = fill(walkthrough.requests.get("predict")!, {
      ...walkthrough.variables,
      model_id: "m",
    });
    const { parameters } = JSON.parse(request.body) as { parameters: { input: string[] } };
    expect((await ml.predict({ input: JSON.stringify(parameters.input) })).status).toBe(200);
    const { body: sent } = upstream.seen.at(-1) as SeenRequest;
    expect(JSON.parse(sent)).toEqual({ ...parameters, model: "text-embedding-ada-002" });
  });

  test("on the connection on which the batch is polled", async () => {
    using ml = await MlCommons.open(connector, service.url);
    expectBatch(await ml.batchPredict({ input_file_id: await upload() }));
    expect((await ml.predict({ input })).status).toBe(200);
    await ended(ml);
    expect((await ml.predict({ input })).status).toBe(200);
    expect(ml.taskState).toBe("COMPLETED");
  });
});

test("the calls of version 2.19, byte for byte", async () => {
  const id = await upload();
  const call = (line: string, body: string) =>
    `${line} HTTP/1.1\r\nHost: 203.0.113.10:8080\r\nAuthorization: Bearer ${key}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  using connection = await RawConnection.open(service.url);
  connection.send(
    call(
      "POST /openai/v1/batches",
      `{ "input_file_id": "${id}", "endpoint": "\\/v1\\/embeddings", "completion_window": "24h" }`,
    ),
  );
  const batch = expectBatch(await connection.answer());
  for (const body of ["", "{}", "not even JSON"]) {
    connection.send(call(`GET /openai/v1/batches/${String(batch["id"])}`, body));
    expect(expectBatch(await connection.answer())["id"]).toBe(batch["id"]);
  }
  await service.events.reached("batch.completed", { batch: batch["id"] });
  const repeated = await rawRequest(
    service.url,
    call(`POST /openai/v1//batches//${String(batch["id"])}/cancel/`, ""),
  );
  expectPlain(repeated);
  expect(repeated.status).toBe(409);
});

describe("the example files", () => {
  test("trust every URL of the connectors, placeholders included", () => {
    const settings = JSON.parse(exampleText("cluster-settings.json")).persistent as Record<
      string,
      string[]
    >;
    const trusted = settings["plugins.ml_commons.trusted_connector_endpoints_regex"] ?? [];
    // What versions from 3.7 on refuse: groups that repeat, and length.
    for (const pattern of trusted) expect(pattern).not.toMatch(/[)\]][*+?{]|\\\d|.{257}/);
    for (const { url } of [...connector.actions, ...explicit.actions]) {
      expect(
        trusted.some((pattern) => new RegExp(`^(?:${pattern})$`).test(url)),
        url,
      ).toBe(true);
    }
  });

  test("have one address, one key, and hosts that Java takes", () => {
    const { batchd = "" } = walkthrough.variables;
    for (const { parameters, credential, actions } of [connector, explicit]) {
      expect(credential).toEqual({ openAI_key: key });
      expect(parameters["endpoint"]).toBe("/v1/embeddings");
      for (const { url } of actions) expect(url.startsWith(`${batchd}/`), url).toBe(true);
    }
    expect(new URL(batchd).hostname).not.toContain("_");
    expect(config.auth).toMatchObject({ keys: [{ key }] });
  });

  test("are shown in the guide as they are", () => {
    const guide = readFileSync(join(EXAMPLES, "../../docs/opensearch.md"), "utf8");
    for (const name of ["cluster-settings.json", "connector.json", "connector-explicit.json"]) {
      expect(guide.includes(`\`\`\`json\n${exampleText(name)}\`\`\`\n`), name).toBe(true);
    }
  });

  test("send JSON wherever they say so", () => {
    const variables = { connector_id: "c", model_id: "m", file_id: "file-x", task_id: "t" };
    const all = { ...walkthrough.variables, ...variables, output_file_id: "file-y" };
    for (const [name, request] of walkthrough.requests) {
      const { headers, body } = fill(request, all);
      if (headers["content-type"] === "application/json") {
        expect(() => JSON.parse(body), name).not.toThrow();
      }
    }
    const batchPredict = JSON.parse(fill(walkthrough.requests.get("batch_predict")!, all).body);
    expect(Object.keys(batchPredict.parameters)).toEqual(["input_file_id"]);
  });

  test("lead from the upload to documents with embeddings", async () => {
    using ml = await MlCommons.open(connector, service.url);
    await ml.batchPredict({ input_file_id: await upload() });
    await ended(ml);
    const output = await sendWalk("output", {
      output_file_id: String(ml.remoteJob["output_file_id"]),
    });
    const text = await output.text();
    expect(text.endsWith("}\n")).toBe(true);
    expect(text.split("\n").slice(0, -1)).not.toContain("");
    const folder = mkdtempSync(join(tmpdir(), "batchd-opensearch-"));
    writeFileSync(join(folder, "output.jsonl"), text);
    // A title with a line separator, which JSON takes in a string as it is.
    const passages = readFileSync(join(EXAMPLES, "passages.jsonl"), "utf8");
    const title = "Le jardin\u2028d’hiver";
    const separated = passages.replace("Le jardin d’hiver", title);
    writeFileSync(join(folder, "passages.jsonl"), separated);
    const bulk = execFileSync(
      process.execPath,
      [join(EXAMPLES, "to-bulk.ts"), join(folder, "passages.jsonl"), join(folder, "output.jsonl")],
      { encoding: "utf8" },
    );
    rmSync(folder, { recursive: true });
    const lines = bulk
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line));
    expect(lines).toHaveLength(6);
    expect(lines[2]).toEqual({ index: { _index: "passages", _id: "passage-2" } });
    expect(lines[3]).toMatchObject({
      title,
      title_embedding: expect.arrayContaining([expect.any(Number)]),
    });
  });
});
