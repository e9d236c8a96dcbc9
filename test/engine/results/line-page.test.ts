/** The lines of a batch, page by page, each with its question and its answer, while it runs and afterwards. */
import { beforeAll, describe, expect, test } from "vitest";
import { BatchLineList, FailureList } from "../../../src/contract/lines.ts";
import { forAllTests } from "../../support/for-all-tests.ts";
import { chatLine, startTestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";

type Page = ReturnType<typeof BatchLineList.parse>;

const upstream = forAllTests(await startUpstream());
const service = forAllTests(
  await startTestService({
    config: {
      upstreams: [{ name: "one", base_url: upstream.url, models: ["*"], max_concurrency: 16 }],
    },
  }),
);

async function ask(id: string, path: string) {
  const response = await fetch(`${service.url}/v1/batches/${id}/${path}`);
  return { status: response.status, body: (await response.json()) as unknown };
}

async function page(id: string, query = ""): Promise<Page> {
  return BatchLineList.parse((await ask(id, `lines?${query}`)).body);
}

/** Follows the pages to their end. */
async function all(id: string, query: string) {
  const lines: Page["data"] = [];
  for (let after = 0; ; ) {
    const { data, has_more, last_line } = await page(id, `${query}&after_line=${after}`);
    lines.push(...data);
    if (!has_more) return lines;
    expect(last_line).toBeGreaterThan(after);
    after = last_line;
  }
}

const isBad = (n: number) => n % 10 === 0;
/** The lines are long enough for the marks and the search in the result file to matter. */
const padding = "x".repeat(8_000);
const lineOf = (n: number) =>
  chatLine(`line-${n}`, isBad(n) ? "[[status 400]]" : `Say ${n} [[big 8000]]`, { padding });
const COUNT = 300;
const numbers = Array.from({ length: COUNT }, (_, i) => i + 1);

describe("of an ended batch", () => {
  let id: string;
  beforeAll(async () => {
    const batch = await service.run([
      ...numbers.slice(0, 99).map(lineOf),
      "",
      ...numbers.slice(99).map(lineOf),
    ]);
    id = batch.id;
  });

  /** Line 100 of the file is blank. */
  const placeOf = (n: number) => (n < 100 ? n : n + 1);

  test("every line stands beside its answer, in order, and pages follow each other", async () => {
    const lines = await all(id, "limit=100");
    expect(lines.map(({ line }) => line)).toEqual(numbers.map(placeOf));
    for (const [i, { custom_id, status, request, response, error }] of lines.entries()) {
      const n = i + 1;
      expect(request).toEqual(JSON.parse(lineOf(n)));
      expect([custom_id, status, error]).toEqual([
        `line-${n}`,
        isBad(n) ? "failed" : "succeeded",
        null,
      ]);
      expect(response?.["status_code"]).toBe(isBad(n) ? 400 : 200);
    }
  });

  test("the lines of a state, or with an id, are found among the others", async () => {
    const failed = await all(id, "status=failed&limit=7");
    expect(failed.map(({ line }) => line)).toEqual(numbers.filter(isBad).map(placeOf));
    const succeeded = await page(id, "status=succeeded&after_line=255&limit=2");
    expect(succeeded.data.map(({ custom_id }) => custom_id)).toEqual(["line-255", "line-256"]);
    expect(await all(id, "status=waiting")).toEqual([]);
    const one = await all(id, "custom_id=line-232");
    expect(one.map(({ line, custom_id }) => [line, custom_id])).toEqual([[233, "line-232"]]);
    expect(await all(id, "custom_id=line-232&status=failed")).toEqual([]);
  });

  test("failures have the first lines of each group", async () => {
    const { data } = FailureList.parse((await ask(id, "failures")).body);
    expect(data.map(({ status_code, lines }) => [status_code, lines])).toEqual([[400, COUNT / 10]]);
    expect(data[0]?.examples.map(({ line, custom_id }) => [line, custom_id])).toEqual(
      [10, 20, 30].map((n) => [n, `line-${n}`]),
    );
    expect(data[0]?.examples[0]?.message).toEqual(expect.any(String));
  });

  test("a result file is read from near the wanted line, wherever that is", async () => {
    for (const after of [0, 1, 99, 100, 101, 299, 300, 301, 400]) {
      const response = await fetch(
        `${service.url}/v1/batches/${id}/output?after_line=${after}&limit=1`,
      );
      const text = await response.text();
      const found = text === "" ? undefined : JSON.parse(text).x_batchd.line;
      expect(found).toBe(
        numbers
          .filter((n) => !isBad(n))
          .map(placeOf)
          .find((n) => n > after),
      );
    }
  });

  test("an input that was deleted leaves the answers", async () => {
    const { input_file_id } = await service.openai.batches.retrieve(id);
    await service.openai.files.delete(input_file_id);
    const { data } = await page(id, "after_line=9&limit=2");
    expect(data.map(({ line, request, status }) => [line, request, status])).toEqual([
      [10, null, "failed"],
      [11, null, "succeeded"],
    ]);
  });
});

test("while a batch runs, lines with an answer have it and the others wait", async () => {
  const lines = ["[[status 400]]", "Yes", "No"].map((content, i) => chatLine(`q-${i}`, content));
  const held = Array.from({ length: 5 }, (_, i) => chatLine(`held-${i}`, "Wait [[hang]]"));
  const { id } = await service.submit([...lines, ...held]);
  await expect
    .poll(async () => (await page(id)).data.filter(({ status }) => status === "waiting").length)
    .toBe(5);
  const states = (await page(id)).data.map(({ custom_id, status, response }) => [
    custom_id,
    status,
    response === null,
  ]);
  expect(states.slice(0, 4)).toEqual([
    ["q-0", "failed", false],
    ["q-1", "succeeded", false],
    ["q-2", "succeeded", false],
    ["held-0", "waiting", true],
  ]);
  const waiting = await page(id, "status=waiting&limit=2");
  expect(waiting).toMatchObject({ has_more: true, last_line: 5 });
  await fetch(`${service.url}/v1/batches/${id}`, { method: "DELETE" });
  expect((await ask(id, "lines")).status).toBe(404);
});

describe("a bad query is refused", () => {
  test.each<[string, string, string]>([
    ["lines?status=done", "status", "invalid_value"],
    ["lines?limit=0", "limit", "integer_below_min_value"],
    ["lines?limit=101", "limit", "integer_above_max_value"],
    ["lines?after_line=-1", "after_line", "integer_below_min_value"],
    ["lines?after_line=x", "after_line", "invalid_type"],
    [`lines?custom_id=${"c".repeat(513)}`, "custom_id", "string_above_max_length"],
    ["lines?order=asc", "order", "unknown_parameter"],
    ["failures?limit=1", "limit", "unknown_parameter"],
  ])("%s", async (path, param, code) => {
    const { status, body } = await ask("batch_unknown", path);
    expect([status, body]).toMatchObject([400, { error: { param, code } }]);
  });
});

test("a page without a wanted line ends after 16 MiB, and the pages behind it find every one", async () => {
  const answers = 24;
  upstream.forget();
  const lines = Array.from({ length: answers }, (_, i) => chatLine(`long-${i}`, "[[big 800000]]"));
  const { id } = await service.submit([...lines, chatLine("late", "[[hang]]")]);
  // A line waits until its answer is durable.
  const answered = async () =>
    (await service.openai.batches.retrieve(id)).request_counts?.completed;
  await expect.poll(answered, { timeout: 30_000 }).toBe(answers);
  const found: string[] = [];
  let pages = 0;
  for (let after = 0, more = true; more; pages++) {
    const { data, has_more, last_line } = await page(id, `status=waiting&after_line=${after}`);
    found.push(...data.map(({ custom_id }) => custom_id ?? ""));
    if (has_more) expect(last_line).toBeGreaterThan(after);
    [after, more] = [last_line, has_more];
  }
  expect(found).toEqual(["late"]);
  expect(pages).toBeGreaterThan(1);
  await service.openai.batches.cancel(id);
});
