import { expect, test } from "vitest";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

type Group = { status_code: number | null; code: string | null; lines: number };
const groupsOf = (batch: unknown) =>
  (batch as { x_batchd: { failures: Group[] } }).x_batchd.failures;

test("failed lines are grouped by the status and code of their rows, in a running batch and in an ended one", async () => {
  await using upstream = await startUpstream({
    answers: ({ user }) => {
      const n = Number(user.slice("line-".length));
      if (n % 2 === 0) return { body: { choices: [] } };
      const code = n % 3 === 0 ? "too_long" : "bad_field";
      return { status: n % 3 === 0 ? 413 : 400, body: { error: { code, message: "No" } } };
    },
  });
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.submit(chatLines(60));
  await service.events.reached("journal.flushed", { batch: id });
  const running = await service.openai.batches.retrieve(id);
  const soFar = groupsOf(running).reduce((sum, { lines }) => sum + lines, 0);
  expect(soFar).toBe(running.request_counts?.failed);

  const batch = await service.ended(id);
  expect(groupsOf(batch)).toEqual([
    { status_code: 400, code: "bad_field", lines: 20 },
    { status_code: 413, code: "too_long", lines: 10 },
  ]);
  const rows = await service.rows(batch.error_file_id);
  const ofRows = Map.groupBy(rows, ({ response }) => {
    const { code } = (response!.body as { error: { code: string } }).error;
    return `${response!.status_code} ${code}`;
  });
  expect([...ofRows].map(([key, { length }]) => [key, length]).sort()).toEqual([
    ["400 bad_field", 20],
    ["413 too_long", 10],
  ]);
});

test("an upstream that answers each line with another code makes twenty groups, and their sum is right", async () => {
  await using upstream = await startUpstream({
    answers: ({ user }) => ({ status: 400, body: { error: { code: user, message: "No" } } }),
  });
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const batch = await service.run(chatLines(300));
  const groups = groupsOf(batch);
  expect(groups).toHaveLength(20);
  expect(groups.at(-1)).toEqual({ status_code: null, code: null, lines: 281 });
});

test("lines that never ran are in no group, as they are not counted as failed", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { upstreams: [], engine: { stop_grace_seconds: 0 } },
  });
  const { id } = await service.submit(chatLines(3));
  await service.openai.batches.cancel(id);
  expect(groupsOf(await service.ended(id))).toEqual([]);
});
