/** Result files as tables, over HTTP. */

import { writeFileSync } from "node:fs";
import { readFile, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { queryTable } from "../support/duckdb.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { atTestEnd } from "../support/leftovers.ts";
import { openCount } from "../support/open-files.ts";
import { clientOf } from "../support/projects.ts";
import { RawConnection } from "../support/raw-http.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

/** A megabyte each. They are more than a connection takes at once. */
const LARGE_LINES = 20;
/** A formula behind millions of signs that cannot be seen. */
const HIDDEN = `${"\u200b".repeat(6_000_000)}=1`;

const folder = forAllTests(temporaryFolder("batchd-tables-")).path;
const upstream = forAllTests(
  await startUpstream({
    answers: ({ user }) => {
      if (user === "bad") return { status: 400, body: { error: { code: "no", message: "No." } } };
      if (user === "hidden") return { body: { choices: [{ message: { content: HIDDEN } }] } };
      const formula = user === "c" ? " \u00a0\ufeff=SUM(A1)" : '=SUM(A1)\n"ü"';
      const content = user.startsWith("large") ? "y".repeat(1_000_000) : formula;
      const usage = { prompt_tokens: 3, completion_tokens: 4, total_tokens: 7 };
      return { body: { model: "served", choices: [{ message: { content } }], usage } };
    },
  }),
);
const service = forAllTests(await startTestService({ upstreamUrl: upstream.url }));
const batch = await service.run(["a", "bad", "c"].map((id) => chatLine(id, "Hi")));
const inputId = batch.input_file_id;
const outputId = batch.output_file_id ?? "";
const errorId = batch.error_file_id ?? "";
const large = await service.run(
  Array.from({ length: LARGE_LINES }, (_, i) => chatLine(`large-${i}`, "Hi")),
);
const largeId = large.output_file_id ?? "";

const download = (id: string, query: string, init: RequestInit = {}) =>
  fetch(`${service.url}/v1/files/${id}/content${query}`, init);

test("a formula behind millions of signs that cannot be seen is none in CSV, and the table is whole", async () => {
  const { output_file_id } = await service.run([chatLine("hidden", "Hi"), chatLine("a", "Hi")]);
  const response = await download(output_file_id ?? "", "?format=csv");
  const rows = (await response.text()).split("\r\n").slice(1);
  expect(rows).toHaveLength(3);
  // The difference of two texts of this length would take minutes to show.
  expect(rows[0]?.startsWith(`"hidden",1,200,"'${HIDDEN}",`)).toBe(true);
});

describe("a result file", () => {
  test("comes as CSV, with a line for each line of the batch and no formula", async () => {
    const response = await download(outputId, "?format=csv");
    expect(response.headers.get("content-type")).toBe("text/csv; charset=utf-8");
    expect(response.headers.get("content-disposition")).toMatch(/filename="batch_\w+_output.csv"/);
    expect(response.headers.get("x-request-id")).toMatch(/^req_/);
    expect(await response.text()).toBe(
      [
        `"custom_id","line","status","text","json","finish_reason","model","input_tokens","cached_tokens","output_tokens","reasoning_tokens","total_tokens","error_code","error_message"`,
        `"a",1,200,"'=SUM(A1)\n""ü""",,,"served",3,0,4,0,7,,`,
        `"c",3,200,"' \u00a0\ufeff=SUM(A1)",,,"served",3,0,4,0,7,,`,
        "",
      ].join("\r\n"),
    );
  });

  test("comes as Parquet, which DuckDB reads", async () => {
    const response = await download(errorId, "?format=parquet");
    expect(response.headers.get("content-type")).toBe("application/vnd.apache.parquet");
    expect(response.headers.get("content-disposition")).toMatch(/_error.parquet"$/);
    const path = join(folder, "errors.parquet");
    writeFileSync(path, await response.bytes());
    expect(await queryTable(`select custom_id, line, status, error_code from '${path}'`)).toEqual([
      { custom_id: "bad", line: "2", status: "400", error_code: "no" },
    ]);
  });

  test("as jsonl is the file itself, with its length and its ranges", async () => {
    const [plain, named] = await Promise.all([
      download(outputId, ""),
      download(outputId, "?format=jsonl"),
    ]);
    expect(await named.text()).toBe(await plain.text());
    const part = await download(outputId, "?format=jsonl", { headers: { range: "bytes=0-1" } });
    expect([part.status, await part.text()]).toEqual([206, '{"']);
  });

  test("has no ranges and no length as a table, and comes as a whole", async () => {
    const range = { headers: { range: "bytes=0-1" } };
    const response = await download(outputId, "?format=csv", range);
    expect(response.status).toBe(200);
    expect(response.headers.get("accept-ranges")).toBe("none");
    expect(await response.text()).toMatch(/^"custom_id".*\r\n$/s);
    const head = await download(outputId, "?format=csv", { method: "HEAD" });
    expect(head.headers.get("content-type")).toBe("text/csv; charset=utf-8");
    expect([head.status, head.headers.get("content-length")]).toEqual([200, null]);
  });
});

test.each([
  ["a format that is not known", () => outputId, "?format=xlsx"],
  ["a table of a file without results", () => inputId, "?format=csv"],
])("%s is refused", async (_name, id, query) => {
  const response = await download(id(), query);
  expect([response.status, await response.json()]).toMatchObject([
    400,
    { error: { param: "format", code: "invalid_value" } },
  ]);
});

test("a client that goes away in the middle releases the file and its place", async () => {
  const leave = async () => {
    const connection = await RawConnection.open(service.url);
    const begun = new Promise((done) => connection.socket.once("data", done));
    connection.send(`GET /v1/files/${largeId}/content?format=csv HTTP/1.1\r\nHost: x\r\n\r\n`);
    await begun;
    connection.socket.destroy();
  };
  for (let i = 0; i < 5; i++) {
    await leave();
    await expect.poll(() => openCount(largeId)).toBe(0);
  }
  await expect.poll(async () => (await download(outputId, "?format=csv")).status).toBe(200);
});

/** Begins a download as a table, and reads only its beginning. */
async function holdTable(
  url: string,
  id: string,
  { key = "none", version = "1.1" } = {},
): Promise<RawConnection> {
  const connection = await RawConnection.open(url);
  const begun = new Promise((done) => connection.socket.once("data", done));
  connection.send(
    `GET /v1/files/${id}/content?format=csv HTTP/${version}\r\nHost: x\r\nAuthorization: Bearer ${key}\r\n\r\n`,
  );
  await begun;
  connection.socket.pause();
  return connection;
}

test("a table that cannot be made to its end does not look complete, not even to a client of HTTP/1.0, and the log says why", async () => {
  const path = join(service.dataDir, "blobs", "files", largeId);
  const results = await readFile(path);
  using connection = await holdTable(service.url, largeId, { version: "1.0" });
  const wasReset = connection.wasReset();
  atTestEnd(() => writeFile(path, results));
  await truncate(path, results.length / 2);
  connection.socket.resume();
  expect(await wasReset).toBe(true);
  await service.events.reached("download.broken", { file: largeId });
  const broken = service.events.all.findLast(({ event }) => event === "download.broken");
  expect(broken?.["err"]).toMatchObject({ message: expect.stringContaining("ends before byte") });
});

/** A server with projects of these names, of which each has a large result file, and a status for each download. */
async function startProjects(names: readonly string[], clock?: FakeClock) {
  const keys = names.map((name) => ({ name, key: name, project: name }));
  const service = await startTestService({
    ...{ upstreamUrl: upstream.url, config: { auth: { keys } } },
    ...(clock && { clock }),
  });
  const lines = Array.from({ length: LARGE_LINES }, (_, i) => chatLine(`large-${i}`, "Hi"));
  const ids = await Promise.all(
    keys.map(async ({ key }) => {
      const openai = clientOf(service.url, key);
      const { id } = await submitLines(openai, lines);
      await service.events.reached("batch.completed", { batch: id });
      return (await openai.batches.retrieve(id)).output_file_id ?? "";
    }),
  );
  const idOf = (name: string) => ids[names.indexOf(name)] ?? "";
  return {
    hold: (key: string) => holdTable(service.url, idOf(key), { key }),
    statusOf: async (key: string) => {
      const headers = { authorization: `Bearer ${key}` };
      const path = `/v1/files/${idOf(key)}/content?format=csv`;
      const answer = await fetch(service.url + path, { headers });
      await answer.body?.cancel();
      return answer.status;
    },
    events: service.events,
    [Symbol.asyncDispose]: () => service[Symbol.asyncDispose](),
  };
}

test("two projects of slow clients leave a conversion to a third one", async () => {
  await using others = await startProjects(["first", "second", "third"]);
  const held = [
    await others.hold("first"),
    await others.hold("first"),
    await others.hold("second"),
  ];
  expect(await others.statusOf("second")).toBe(429);
  expect(await others.statusOf("third")).toBe(200);
  for (const connection of held) connection.socket.destroy();
});

test("a client that has read nothing for ten seconds leaves its conversion to one that comes, sees a broken table, and the log says why", async () => {
  const clock = new FakeClock();
  await using others = await startProjects(["first", "second", "third", "fourth"], clock);
  const held = [
    await others.hold("first"),
    await others.hold("first"),
    await others.hold("second"),
    await others.hold("third"),
  ];
  const closed = held.map(({ socket }) => new Promise((done) => socket.once("close", done)));
  expect(await others.statusOf("fourth")).toBe(503);
  await expect
    .poll(() => {
      clock.advance(10_000);
      return others.statusOf("fourth");
    })
    .toBe(200);
  for (const { socket } of held) socket.resume();
  await Promise.any(closed);
  await others.events.reached("download.broken", { format: "csv" });
  const [broken] = others.events.all.filter(({ event }) => event === "download.broken");
  expect(broken?.["err"]).toMatchObject({
    message: expect.stringContaining("another waited for its conversion"),
  });
  for (const { socket } of held) socket.destroy();
});

test("too many conversions at a time are told to come back", async () => {
  const held = [await holdTable(service.url, largeId), await holdTable(service.url, largeId)];
  const refused = await download(outputId, "?format=csv");
  expect([refused.status, refused.headers.get("retry-after")]).toEqual([429, "1"]);
  for (const connection of held) connection.socket.destroy();
  await expect.poll(async () => (await download(outputId, "?format=csv")).status).toBe(200);
});
