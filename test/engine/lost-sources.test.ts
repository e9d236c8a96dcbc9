/** A merged retry whose source loses a result file on the disk before the retry ends: it has all that is left. */
import { readFile, rename, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { derive } from "../support/derived.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

/** Lines 3, 6 and 9 fail once; line 9 twice. */
const contentOf = (n: number) => (n % 3 !== 0 ? "Hi" : `[[status 400 x${n === 9 ? 2 : 1}]]`);
const all = Array.from({ length: 10 }, (_, i) => i + 1);
const lines = all.map((n) => chatLine(`line-${n}`, contentOf(n)));
const idsOf = (numbers: readonly number[]) => numbers.map((n) => `line-${n}`);
const kept = all.filter((n) => n % 3 !== 0);

interface Loss {
  readonly damage: (path: string) => Promise<void>;
  /** The lines whose answers are still there. */
  readonly left: readonly number[];
  /** Whether the answers count as lost only after some tries. */
  readonly mayPass?: true;
}

const LOSSES: Record<string, Loss> = {
  removed: { damage: (path) => rm(path), left: [] },
  truncated: {
    damage: async (path) => truncate(path, (await readFile(path, "utf8")).indexOf("line-5")),
    left: [1, 2, 4],
  },
  garbled: {
    damage: async (path) => {
      const text = await readFile(path, "utf8");
      await writeFile(
        path,
        text.replace(/batch_req_(?=[^,]+,"custom_id":"line-5")/, "batch_xxx_xx"),
      );
    },
    left: [1, 2, 4],
    mayPass: true,
  },
};

test.each(Object.entries(LOSSES))(
  "a merged retry whose kept answers are %s ends with its own, and with answer_lost rows for the others",
  async (_name, { damage, left, mayPass = false }) => {
    const clock = new FakeClock();
    await using upstream = await startUpstream();
    await using service = await startTestService({ upstreamUrl: upstream.url, clock });
    const first = await service.run([...lines.slice(0, 5), "", ...lines.slice(5)]);
    upstream.hold();
    const { id } = (await derive(service, { batch: first.id, lines: "failed", merge: true })).batch;
    await upstream.reached(upstream.total + 3);
    await damage(join(service.dataDir, "blobs/files", first.output_file_id ?? ""));
    const early = await fetch(`${service.url}/v1/batches/${id}/output`);
    upstream.release();
    if (!mayPass) expect(early.status).toBe(200);
    const end = service.ended(id);
    for (let tries = 1; tries <= 5 && mayPass; tries++) {
      await service.events.reached("loop.pass_failed", { count: tries });
      await clock.asleep(1, clock.nowMs());
      clock.advance(31_000);
    }
    const batch = await end;

    expect(batch.status).toBe("completed");
    expect(batch.request_counts).toEqual({ total: 3, completed: 2, failed: 1 });
    const output = await service.rows(batch.output_file_id);
    expect(output.map((row) => row.custom_id)).toEqual(
      idsOf(all.filter((n) => left.includes(n) || n === 3 || n === 6)),
    );
    const errors = await service.rows(batch.error_file_id);
    expect(errors.map((row) => [row.custom_id, row.error?.code ?? null])).toEqual(
      all
        .filter((n) => n === 9 || (kept.includes(n) && !left.includes(n)))
        .map((n) => [`line-${n}`, n === 9 ? null : "answer_lost"]),
    );
    // The numbers are those of the first input, where line 6 is blank.
    const tail = await (await fetch(`${service.url}/v1/batches/${id}/errors?after_line=10`)).text();
    expect(tail).toContain('"x_batchd":{"line":11}');

    const again = await derive(service, { batch: id, lines: "failed", merge: true });
    const whole = await service.ended(again.batch.id);
    const rows = await service.rows(whole.output_file_id);
    expect(rows.map((row) => row.custom_id)).toEqual(idsOf(all));
  },
);

test.each([
  { lost: ["error"], keptCode: null },
  { lost: ["output", "error"], keptCode: "answer_lost" },
])(
  "a merged retry that sends equal bodies once has a row for each line when the $lost file of its source is lost",
  async ({ lost, keptCode }) => {
    await using upstream = await startUpstream();
    await using service = await startTestService({ upstreamUrl: upstream.url });
    // The bodies of lines 3 and 6 are equal, so they fail once each, and then the line for both succeeds.
    const equal = (n: number) => chatLine(`line-${n}`, "[[status 400 x2]]", { user: "equal" });
    const first = await service.run(
      lines.map((line, i) => (i === 2 || i === 5 ? equal(i + 1) : line)),
    );
    upstream.hold();
    const from = { batch: first.id, lines: "failed", merge: true };
    const { id } = (await derive(service, {}, { x_batchd: { from, dedupe: true } })).batch;
    await upstream.reached(upstream.total + 2);
    const files = { output: first.output_file_id, error: first.error_file_id };
    for (const each of lost) {
      const fileId = files[each as keyof typeof files] ?? "none";
      await rm(join(service.dataDir, "blobs/files", fileId));
    }
    upstream.release();
    const batch = await service.ended(id);

    const found = new Map<string, string | null>();
    for (const fileId of [batch.output_file_id, batch.error_file_id]) {
      const rows = await service.rows(fileId);
      for (const row of rows) found.set(row.custom_id, row.error?.code ?? null);
    }
    expect([...found.keys()].toSorted()).toEqual(idsOf(all).toSorted());
    for (const n of all) expect(found.get(`line-${n}`)).toBe(n % 3 === 0 ? null : keptCode);
    const output = await service.rows(batch.output_file_id);
    expect(output.map((row) => row.custom_id)).toEqual(
      idsOf(all.filter((n) => n === 3 || n === 6 || (n % 3 !== 0 && keptCode === null))),
    );
  },
);

test.each([
  { lines: "all", merge: false },
  { lines: "failed", merge: false },
  { lines: "failed", merge: true },
  { lines: "succeeded", merge: false },
])(
  "a batch of $lines lines, merged: $merge, of an input that has lost its end fails, and leaves no line out",
  async (from) => {
    await using upstream = await startUpstream();
    await using service = await startTestService({ upstreamUrl: upstream.url });
    const first = await service.run(lines);
    const path = join(service.dataDir, "blobs/files", first.input_file_id);
    await truncate(path, (await readFile(path, "utf8")).indexOf(lines[4] ?? ""));
    const { id } = (await derive(service, { ...from, batch: first.id })).batch;
    const { status, errors } = await service.ended(id);
    expect([status, errors?.data?.map(({ code }) => code)]).toEqual([
      "failed",
      ["source_unusable"],
    ]);
    expect(errors?.data?.[0]?.message).toContain(first.id);
  },
);

test("a batch waits for the lines of its source while the storage is away", async () => {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url, clock });
  const first = await service.run(lines);
  const [blobs, away] = [join(service.dataDir, "blobs"), join(service.dataDir, "away")];
  await rename(blobs, away);
  const { id } = (await derive(service, { batch: first.id, lines: "all" })).batch;
  await service.events.reached("loop.pass_failed", { loop: "derive" });
  await rename(away, blobs);
  const end = service.ended(id);
  await clock.asleep(1, clock.nowMs());
  clock.advance(31_000);
  expect(await end).toMatchObject({ status: "completed", request_counts: { total: 10 } });
});
