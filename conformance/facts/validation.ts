/** Sections 3.1 and 3.2: the form of a line, and the validation of input. */
import assert from "node:assert/strict";
import { completes, faultsOf } from "../expect.ts";
import { type Section, strong, weak } from "../fact.ts";
import { chatBody, line } from "../lines.ts";
import type { Json } from "../server.ts";

export const lineFormat: Section = {
  number: "3.1",
  title: "Line of an input file",
  facts: [
    strong.http(
      "3.1-shape",
      "A line is `custom_id`, `method: POST`, `url` as the endpoint of the batch, and `body`",
      async ({ stories }) => {
        assert.equal((await stories.clean()).final.status, "completed");
      },
    ),
    strong.http(
      "3.1-custom-id",
      "`custom_id` is any text and comes back exactly",
      async ({ main }) => {
        const ids = ['q"1\\', "ünï \u{1f600}", " ", "a".repeat(2_000), "\u0000\n"];
        const batch = await completes(
          main,
          ids.map((id) => line(id, "Hello", { body: chatBody("Hello") })),
        );
        const rows = await main.rows(batch.output_file_id);
        assert.deepEqual(
          rows.map(({ custom_id }) => custom_id),
          ids,
        );
      },
    ),
    strong.http("3.1-body", "`body` goes to the model as it stands", async ({ main, upstream }) => {
      const body =
        '{"model": "test-model",  "big": 9007199254740993, "messages":[{"role":"user","content":"as it stands"}]}';
      const text = `{"custom_id":"raw","method":"POST","url":"/v1/chat/completions","body":${body}}`;
      await completes(main, [text]);
      assert.ok(upstream.seen.some((request) => request.body === body));
    }),
    weak.http(
      "3.1-key-order",
      "The keys of a line may come in any order, with others among them",
      async ({ main }) => {
        const { custom_id, ...rest } = JSON.parse(line("any")) as Json;
        await completes(main, [JSON.stringify({ extra: 1, ...rest, custom_id })]);
      },
    ),
  ],
};

export const validation: Section = {
  number: "3.2",
  title: "When and how input is validated",
  facts: [
    strong.http(
      "3.2-asynchronous",
      "Faults of the input are told by the batch, not by the request that creates it",
      async ({ stories }) => {
        const { created, final } = await stories.faulty();
        assert.deepEqual(
          [created.status, created["errors"], final.status],
          ["validating", null, "failed"],
        );
      },
    ),
    strong.http(
      "3.2-every-line",
      "Every bad line has an entry, in the order of the lines",
      async ({ stories }) => {
        const faults = faultsOf((await stories.faulty()).final);
        assert.deepEqual(
          faults.map((fault) => [fault["line"], fault["code"]]),
          [
            [2, "invalid_json_line"],
            [3, "duplicate_custom_id"],
            [4, "invalid_url"],
            [5, "invalid_json_line"],
          ],
        );
      },
    ),
    strong.http(
      "3.2-none-runs",
      "One bad line fails the batch, and no line is run",
      async ({ main, upstream }) => {
        const prompt = "this must never be asked";
        assert.equal((await main.run([line("good", prompt), "{"])).status, "failed");
        assert.equal(
          upstream.seen.some(({ body }) => body.includes(prompt)),
          false,
        );
      },
    ),
    strong.http(
      "3.2-counts",
      "A failed batch counts 0/0/0 and has no files",
      async ({ stories }) => {
        const { request_counts, output_file_id, error_file_id } = (await stories.faulty()).final;
        assert.deepEqual(request_counts, { total: 0, completed: 0, failed: 0 });
        assert.deepEqual([output_file_id, error_file_id], [null, null]);
      },
    ),
    weak.http("3.2-cap", "The first hundred bad lines are listed", async ({ main }) => {
      const faults = faultsOf(await main.run([line("good"), ...Array(150).fill("{")]));
      assert.deepEqual(
        faults.map((fault) => fault["line"]),
        Array.from({ length: 100 }, (_, i) => i + 2),
      );
    }),
  ],
};
