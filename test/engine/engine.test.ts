import { expect, test } from "vitest";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

test("output and error rows are in input order even when answers come in another", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const content = (n: number) =>
    `[[delay ${(n * 7) % 40}]] ${n % 5 === 0 ? "[[status 400]]" : "fine"}`;

  const batch = await service.run(chatLines(60, content));

  const output = await service.rows(batch.output_file_id);
  const error = await service.rows(batch.error_file_id);
  const numbers = (rows: typeof output) => rows.map((row) => Number(row.custom_id.slice(5)));
  const all = Array.from({ length: 60 }, (_, i) => i + 1);
  expect(numbers(output)).toEqual(all.filter((n) => n % 5 !== 0));
  expect(numbers(error)).toEqual(all.filter((n) => n % 5 === 0));
  expect(batch.request_counts).toEqual({ total: 60, completed: 48, failed: 12 });
});
