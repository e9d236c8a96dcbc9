/** Run records, from the batch to its record. */

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { RunRecord } from "../../src/contract/run.ts";
import { createBatch } from "../support/batches.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const SECRET = "sk-upstream-secret";

const upstream = forAllTests(
  await startUpstream({
    answers: ({ user }) => {
      if (user === "bad") return { status: 400, body: { error: { message: "No." } } };
      const model = user === "rare" ? "served-rare" : "served";
      const system_fingerprint = `fp_${user.length}`;
      const content = '{"model":"not this one","system_fingerprint":"nor this"}';
      return {
        body: { choices: [{ message: { content, model: "no" } }], model, system_fingerprint },
      };
    },
  }),
);
const service = forAllTests(
  await startTestService({
    config: {
      limits: { allow_mixed_models: true },
      upstreams: [
        { name: "gpu-1", base_url: upstream.url, api_key: SECRET, models: ["asked", "test-model"] },
        { name: "other", base_url: "http://127.0.0.1:9/v1", models: ["never"] },
      ],
    },
  }),
);

const fetchRun = (id: string) => fetch(`${service.url}/v1/batches/${id}/run`);
const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");

async function ended(lines: readonly string[], metadata?: Record<string, string>) {
  const input_file_id = await service.upload(lines);
  const { id } = await createBatch(service.openai, input_file_id, {
    ...(metadata && { metadata }),
  });
  return service.ended(id);
}

describe("the record of a run", () => {
  test("says what was asked, what has answered, and which bytes went in and came out", async () => {
    const lines = [
      chatLine("a", "first prompt", { model: "asked", temperature: 0, user: "aa" }),
      chatLine("rare", "second prompt", { temperature: 0 }),
      chatLine("bad", "third prompt", { temperature: 0, top_p: 1 }),
    ];
    const batch = await ended(lines, { name: "nightly", zeta: "1" });
    const response = await fetchRun(batch.id);
    const text = await response.text();
    const record = RunRecord.parse(JSON.parse(text));
    const [output, errors] = await Promise.all([
      service.text(batch.output_file_id),
      service.text(batch.error_file_id),
    ]);
    expect(record).toMatchObject({
      schema: "run_record.v1",
      batch_id: batch.id,
      name: "nightly",
      status: "completed",
      models: {
        asked: {
          names: [
            { name: "test-model", lines: 2 },
            { name: "asked", lines: 1 },
          ],
        },
        served: {
          names: [
            { name: "served", lines: 1 },
            { name: "served-rare", lines: 1 },
          ],
          others: 0,
        },
        system_fingerprints: {
          names: [
            { name: "fp_2", lines: 1 },
            { name: "fp_4", lines: 1 },
          ],
        },
      },
      parameters: { common: { temperature: 0 }, varying: ["top_p", "user"] },
      input: {
        file_id: batch.input_file_id,
        filename: "input.jsonl",
        lines: 3,
        location: null,
        sha256: sha256(`${lines.join("\n")}\n`),
      },
      output: { file_id: batch.output_file_id, sha256: sha256(output), lines: 2 },
      errors: { file_id: batch.error_file_id, sha256: sha256(errors), lines: 1 },
      upstreams: ["gpu-1"],
      request_counts: { total: 3, completed: 2, failed: 1 },
    });
    for (const secret of [SECRET, upstream.url, "prompt", "not this one"]) {
      expect(text).not.toContain(secret);
    }
  });

  test("has the same bytes for ever, also when the metadata change and the files are deleted", async () => {
    const batch = await ended([chatLine("a", "Hi")], { name: "before" });
    const first = await (await fetchRun(batch.id)).text();
    await fetch(`${service.url}/v1/batches/${batch.id}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ metadata: { name: "after" } }),
    });
    await service.openai.files.delete(batch.input_file_id);
    await service.openai.files.delete(batch.output_file_id ?? "");
    expect(await (await fetchRun(batch.id)).text()).toBe(first);
  });

  test("knows the files that were deleted before anyone asked for it", async () => {
    const batch = await ended([chatLine("a", "Hi")]);
    await service.openai.files.delete(batch.output_file_id ?? "");
    const record = RunRecord.parse(await (await fetchRun(batch.id)).json());
    expect(record.output).toMatchObject({ lines: 1, sha256: expect.stringMatching(/^\w{64}$/) });
  });

  test("is there for a batch that failed, and not for one that runs", async () => {
    const failed = await ended(["{}"]);
    const record = RunRecord.parse(await (await fetchRun(failed.id)).json());
    expect(record).toMatchObject({ status: "failed", output: null, parameters: null });
    expect(record.input.sha256).toBe(sha256("{}\n"));
    upstream.hold();
    const { id } = await service.submit([chatLine("a", "Hi")]);
    const refused = await fetchRun(id);
    upstream.release();
    expect(refused.status).toBe(409);
    await service.ended(id);
    expect((await fetchRun(id)).status).toBe(200);
  });
});

test("the published JSON Schema accepts real records, and nothing with a field missing", async () => {
  const file = new URL("../../docs/run_record.v1.schema.json", import.meta.url);
  const schema = z.fromJSONSchema(JSON.parse(readFileSync(file, "utf8")));
  const batch = await ended([chatLine("a", "Hi")], { name: "n" });
  const record = (await (await fetchRun(batch.id)).json()) as Record<string, unknown>;
  expect(schema.safeParse(record).error).toBeUndefined();
  for (const name of Object.keys(record)) {
    const { [name]: _, ...rest } = record;
    expect([name, schema.safeParse(rest).success]).toEqual([name, false]);
  }
});
