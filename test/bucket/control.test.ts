/** A sample, a retry and the pages of lines, on PostgreSQL and a bucket. */
import { describe, expect, test } from "vitest";
import { sharePostgres } from "../support/postgres.ts";
import { hasS3Server, newPrefix, startS3Server } from "../support/s3-server.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

interface Shown {
  readonly id: string;
  readonly x_batchd: { readonly paused: { readonly reason: string } | null };
}

describe.runIf(hasS3Server())("with PostgreSQL and a bucket", () => {
  test("a batch pauses after its sample, runs to its end, and is merged with the retry of its failed lines", async () => {
    await using postgres = await sharePostgres("a batch on PostgreSQL and a bucket");
    if (postgres === null) return;
    await using server = await startS3Server();
    await using upstream = await startUpstream();
    await using service = await startTestService({
      config: {
        database_url: await postgres.createDatabase(),
        storage: server.storage({ prefix: newPrefix() }),
        upstreams: [{ name: "one", base_url: upstream.url, models: ["*"] }],
      },
    });
    const ask = async (path: string, body?: object) => {
      const method = body === undefined ? "GET" : "POST";
      const init = { method, body: body === undefined ? null : JSON.stringify(body) };
      return (await fetch(`${service.url}/v1/batches${path}`, init)).json();
    };
    const numbers = Array.from({ length: 90 }, (_, i) => i + 1);
    const isBad = (n: number) => n % 4 === 0;
    const lines = numbers.map((n) =>
      chatLine(`line-${n}`, isBad(n) ? "[[status 400 x1]]" : `Say ${n}`),
    );
    const input_file_id = await service.upload(lines);
    const fields = { endpoint: "/v1/chat/completions", completion_window: "24h" };
    const made = { ...fields, input_file_id, x_batchd: { sample: 9 } };
    const { id } = (await ask("", made)) as Shown;
    await expect
      .poll(async () => ((await ask(`/${id}`)) as Shown).x_batchd.paused)
      .toMatchObject({ reason: "sample" });
    expect(upstream.total).toBe(9);
    await ask(`/${id}/resume`, {});
    const first = await service.ended(id);
    expect(first.request_counts).toEqual({ total: 90, completed: 68, failed: 22 });
    const from = { batch: id, lines: "failed", merge: true };
    const retry = (await ask("", { ...fields, x_batchd: { from } })) as Shown;
    // A chain on a batch that may still run. A merged one has all lines, and here all of them ask the same.
    const template = {
      model: "test-model",
      messages: [{ role: "user", content: "{{output.object}} {{input.messages.0.role}}" }],
    };
    const chained = {
      from: { batch: retry.id, template },
      dedupe: true,
    };
    const sentBefore = 90 + 22;
    const next = (await ask("", { ...fields, x_batchd: chained })) as Shown;
    const second = await service.ended(retry.id);
    const third = await service.ended(next.id);
    expect(third.request_counts).toEqual({ total: 90, completed: 90, failed: 0 });
    expect(upstream.total).toBe(sentBefore + 1);
    const answers = await service.rows(third.output_file_id);
    expect(answers.map((row) => row.custom_id)).toEqual(numbers.map((n) => `line-${n}`));
    expect(second.request_counts).toEqual({ total: 22, completed: 22, failed: 0 });
    const rows = await service.rows(second.output_file_id);
    expect(rows.map((row) => row.custom_id)).toEqual(numbers.map((n) => `line-${n}`));
    const page = await ask(`/${second.id}/lines?after_line=88`);
    expect(page).toMatchObject({
      data: [{ custom_id: "line-89" }, { custom_id: "line-90", status: "succeeded" }],
      has_more: false,
    });
    const listed = (await ask("?status=completed&model=test-model")) as { data: Shown[] };
    expect(listed.data.map((batch) => batch.id)).toEqual([next.id, second.id, id]);
  });
});
